"""Files of a program, put and fetched inside its pod by a process with the program's own rights: never by the host."""

import os
import signal
import stat

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_files(files: dict[str, bytes]) -> None:
    """Write name -> content below the working directory, making folders on the way.

    Raises:
        OSError: If it does not fit, or a part of a name is a link.
    """
    for name, content in files.items():
        folder = _open_folder(name, make=True)
        try:
            fd = os.open(os.path.basename(name), _WRITE, 0o644, dir_fd=folder)
        finally:
            os.close(folder)
        with open(fd, "wb", buffering=0) as file:
            written = 0
            while written < len(content):
                written += file.write(content[written:])


def fetch_files(names: list[str], max_bytes: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """Contents by name, and for the other names why not. `max_bytes` is for all together."""
    contents: dict[str, bytes] = {}
    errors: dict[str, str] = {}
    for name in names:
        try:
            contents[name] = _read(name, max_bytes)
            max_bytes -= len(contents[name])
        except OSError as error:
            errors[name] = error.strerror or "it cannot be read"
        except ValueError as error:
            errors[name] = str(error)
    return contents, errors


def _read(name: str, max_bytes: int) -> bytes:
    folder = _open_folder(name, make=False)
    try:
        fd = os.open(os.path.basename(name), _READ, dir_fd=folder)
    finally:
        os.close(folder)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("not a regular file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"larger than the {max_bytes} bytes that are left for files")
    return content


def _open_folder(name: str, *, make: bool) -> int:
    """The folder that holds `name`, component by component so that no link is followed."""
    folder = os.open(".", _DIRECTORY)
    for part in name.split("/")[:-1]:
        if make:
            _make_folder(part, folder)
        below = os.open(part, _DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = below
    return folder


def _make_folder(name: str, parent: int) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:  # and what it is shows when it is opened
        return


def end_everyone_else() -> None:
    """Kill what the program left behind in the pod: a daemon must not change files while they are read."""
    try:
        while True:
            os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left; the shim and the caller do not count
