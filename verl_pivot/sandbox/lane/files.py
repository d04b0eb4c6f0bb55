"""Files, folder and variables of a program, set inside its pod with its own rights, never by the host."""

import binascii
import os
import signal
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take a zygote 10 ms
    from collections.abc import Mapping

    from verl_pivot.sandbox.lane.messages import EncodedFiles
    from verl_pivot.sandbox.lane.process_messages import StartingPlace

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def encode_files(files: "Mapping[str, bytes]") -> "EncodedFiles":
    """Contents as base64, which JSON can carry."""
    return {name: binascii.b2a_base64(content, newline=False).decode() for name, content in files.items()}


def decode_files(files: "EncodedFiles") -> dict[str, bytes]:
    """The inverse of encode_files."""
    return {name: binascii.a2b_base64(content) for name, content in files.items()}


def write_files(files: dict[str, bytes]) -> None:
    """Write name -> content below the working directory, and make the folders that the names need.

    Raises:
        OSError: If a file does not fit, or a part of a name is a symbolic link.
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


def take_place(place: "StartingPlace", *, enters_folder: bool) -> None:
    """Set the variables of a program, and make the folder that it starts in.

    Raises:
        OSError: If the folder does not fit, or a part of its name is a symbolic link or a file.
    """
    environment, folder = place["environment"], place["folder"]
    os.environ.update(environment)
    if "TZ" in environment:
        time.tzset()
    if folder:
        fd = _open_folder(f"{folder}/", make=True)
        if enters_folder:
            os.fchdir(fd)
            os.environ["PWD"] = f"{os.environ['PWD']}/{folder}"
        os.close(fd)


def fetch_files(names: list[str], max_bytes: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """Contents by name, and the reason for each name that cannot be read.

    Args:
        names: Relative to the working directory.
        max_bytes: Size of all files together.
    """
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
    """Descriptor of the folder that holds `name`; opened part by part, so that no symbolic link is followed."""
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
    except FileExistsError:  # opening it will show whether it is a folder
        return


def end_everyone_else() -> None:
    """Kill everything that the program left in the pod: a daemon must not change files while they are read."""
    try:
        while True:
            os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return  # only the shim and the caller are left, to which kill(-1) sends nothing
