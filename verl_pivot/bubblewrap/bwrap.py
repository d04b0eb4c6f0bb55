"""Directories and limits -> the command line of bubblewrap with its file descriptors. Starts nothing.

CVE-2026-87766 (bubblewrap < 0.12.0): a destination below a symbolic link that model code placed creates folders on the
host. Every destination here is a constant of ours or a path of the host's own Python, created in an empty root before
any model code exists; nothing that model code could write is ever mounted.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.bubblewrap.memfd import sealed_memfd
from verl_pivot.bubblewrap.python_view import VENV, PythonView, is_below
from verl_pivot.errors import ConfigError
from verl_pivot.node.privileges import as_ordinary_user
from verl_pivot.sandbox.execution import MIB, Limits

TRUSTED_FOLDERS = (Path("/usr/bin"), Path("/usr/local/bin"), Path("/bin"))
"""Where bwrap is looked for. Never the caller's PATH, which may name folders that others can write."""
MINIMUM_VERSION = (0, 6, 0)
"""The first with --size."""
DISABLE_USERNS_VERSION = (0, 8, 0)
LIBRARY = "/sandbox"
"""Where lanes find our package."""
SHM_BYTES = 16 * MIB
LANE_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETFCAP", "CAP_SYS_CHROOT", "CAP_NET_ADMIN", "CAP_SYS_PTRACE")
PROGRAM_UID = 1000
_MERGED_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FROM_ETC = ("ld.so.cache", "alternatives", "localtime")
_ETC_DATA = {
    "passwd": "root:x:0:0:root:/tmp:/bin/sh\n"
    f"sandbox:x:{PROGRAM_UID}:{PROGRAM_UID}:sandbox:/tmp:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nsandbox:x:{PROGRAM_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_PACKAGE = Path(__file__).parent.parent


def find_bwrap(folders: Iterable[Path] = TRUSTED_FOLDERS) -> Path:
    """Path of bubblewrap.

    Raises:
        ConfigError: If none of `folders` has it.
    """
    folders = tuple(folders)
    for folder in folders:
        path = folder / "bwrap"
        if os.access(path, os.X_OK):
            return path
    raise ConfigError(f"bwrap is in none of {', '.join(map(str, folders))}: sudo apt-get install -y bubblewrap")


def parse_version(text: str) -> tuple[int, int, int]:
    """`bubblewrap 0.8.0` -> (0, 8, 0).

    Raises:
        ConfigError: If `text` holds no version.
    """
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise ConfigError(f"`bwrap --version` answered {text.strip()!r}, which holds no version: reinstall bubblewrap")
    return int(match[1]), int(match[2]), int(match[3] or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file made from bytes: read-only below /etc, the program's own below /tmp."""

    destination: str | bytes
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BwrapCommand:
    """What to spawn: `Popen(command.argv, env={}, pass_fds=command.pass_fds)`, then `command.close()`.

    env={} matters: bwrap's own environment can be read in the sandbox's /proc/1/environ, --clearenv or not.
    """

    argv: tuple[str | bytes, ...]
    pass_fds: tuple[int, ...]
    """Ours and the caller's `keep_fds`."""
    own_fds: tuple[int, ...]

    def close(self) -> None:
        """Close the descriptors made for this command; once, after the spawn."""
        for fd in self.own_fds:
            os.close(fd)


def lane_command(
    python: PythonView,
    arguments: Iterable[str] = (),
    *,
    bwrap: Path,
    keep_fds: Iterable[int] = (),
    mount_proc: bool = True,
    capabilities: Iterable[str] = LANE_CAPABILITIES,
    python_options: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
) -> BwrapCommand:
    """A lane: runs `verl_pivot.lane.main.main(*arguments)` as root of its namespaces, which may make further ones.

    No --disable-userns and no seccomp: its pods need both to be theirs. --uid 0, because with another one bwrap nests
    a second user namespace that does not own the pid namespace. `keep_fds` keep their numbers.
    """
    main = (
        f"import sys; sys.path[:0] = [{LIBRARY!r}]; sys.path += {list(python.site_packages)!r}; "
        "from verl_pivot.lane.main import main; main(*sys.argv[1:])"
    )
    options = ["--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
    for capability in capabilities:
        options += ["--cap-add", capability]
    lane = _PACKAGE / "lane"
    options += [*_view(python), "--ro-bind", str(_PACKAGE / "__init__.py"), f"{LIBRARY}/verl_pivot/__init__.py"]
    options += ["--ro-bind", str(lane), f"{LIBRARY}/verl_pivot/lane"]
    data = [DataFile(destination=f"/etc/{name}", content=text.encode()) for name, text in _ETC_DATA.items()]
    # -P -s -S -B and not -I, which would ignore PYTHONHASHSEED; the environment is ours alone.
    payload = [python.executable, "-P", "-s", "-S", "-B", *python_options, "-c", main, *arguments]
    return _command(
        python,
        [str(bwrap), *options, *_mounts(mount_proc=mount_proc, tmp_bytes=64 * MIB)],
        data,
        payload,
        keep_fds=keep_fds,
        environment={**standard_environment(python), **(environment or {})},
    )


def exec_command(
    python: PythonView,
    payload: Iterable[str | bytes],
    *,
    bwrap: Path,
    version: tuple[int, int, int],
    tmp_bytes: int,
    seccomp: bytes,
    files: Iterable[DataFile] = (),
    keep_fds: Iterable[int] = (),
    mount_proc: bool = True,
    as_pid_1: bool = False,
    library: Path | None = None,
) -> BwrapCommand:
    """One program in namespaces of its own, with no capability, no user namespaces, and `seccomp` (compiled cBPF).

    `payload` is the whole command; `with_limits` puts the limits before a program. `files` are written below /tmp.
    With `as_pid_1`, the payload is PID 1 and must be trusted; else bwrap's reaper is. `library` is one trusted file,
    seen at /sandbox/<its name>.
    """
    uid = str(PROGRAM_UID)
    options = ["--unshare-all", "--unshare-user", "--uid", uid, "--gid", uid, "--cap-drop", "ALL"]
    if version >= DISABLE_USERNS_VERSION:  # before, the filter alone refuses them
        options.append("--disable-userns")
    if as_pid_1:
        options.append("--as-pid-1")
    options += _view(python)
    if library is not None:
        options += ["--ro-bind", str(library), f"{LIBRARY}/{library.name}"]
    data = [DataFile(destination=f"/etc/{name}", content=text.encode()) for name, text in _ETC_DATA.items()]
    return _command(
        python,
        [str(bwrap), *options, *_mounts(mount_proc=mount_proc, tmp_bytes=tmp_bytes)],
        data,
        tuple(payload),
        keep_fds=keep_fds,
        environment=standard_environment(python),
        tmp_files=tuple(files),
        seccomp=seccomp,
    )


def with_limits(limits: Limits, payload: Iterable[str]) -> tuple[str, ...]:
    """`payload` under prlimit, to be started inside: the number of processes counts per user namespace."""
    cpu = limits.cpu_seconds
    data = limits.memory_bytes
    return (
        "/usr/bin/prlimit",
        f"--nproc={limits.num_processes}:{limits.num_processes}",
        f"--nofile={limits.num_open_files}:{limits.num_open_files}",
        f"--cpu={cpu}:{cpu + 1}",
        f"--fsize={limits.tmp_bytes}:{limits.tmp_bytes}",
        f"--data={data}:{data}",
        "--core=0:0",
        "--msgqueue=0:0",
        "--memlock=0:0",
        "--",
        *payload,
    )


def standard_environment(python: PythonView) -> dict[str, str]:
    """All that a program sees of an environment."""
    folders = ("/usr/local/bin", "/usr/bin", "/bin")
    own = str(Path(python.executable).parent)
    return {
        "PATH": ":".join((own, *(folder for folder in folders if folder != own))),
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
    }


def _view(python: PythonView) -> list[str]:
    """Read-only: /usr, what of / is a link into it, three things of /etc, and Python."""
    view = ["--ro-bind", "/usr", "/usr"]
    for name in _MERGED_USR:
        folder = Path("/", name)
        if folder.is_symlink():
            view += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            view += ["--ro-bind", str(folder), str(folder)]
    for name in _FROM_ETC:
        view += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for base in python.bases:
        if not is_below(base, Path("/usr")):
            view += ["--ro-bind", str(base), str(base)]
    if python.environment is not None:
        view += ["--ro-bind", str(python.environment), VENV]
    return view


def _mounts(*, mount_proc: bool, tmp_bytes: int) -> list[str]:
    """What can be written, each of a bounded size; bwrap cannot bound the number of files."""
    mounts = ["--proc", "/proc"] if mount_proc else []
    mounts += ["--dev", "/dev", "--size", str(SHM_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]
    return [*mounts, "--size", str(tmp_bytes), "--perms", "1777", "--tmpfs", "/tmp"]


def _command(
    python: PythonView,
    head: list[str],
    data: Iterable[DataFile],
    payload: Iterable[str | bytes],
    *,
    keep_fds: Iterable[int],
    environment: Mapping[str, str],
    tmp_files: Iterable[DataFile] = (),
    seccomp: bytes | None = None,
) -> BwrapCommand:
    """The tail that every command shares; makes one descriptor per file, as bwrap reads each to its end."""
    argv: list[str | bytes] = [*head]
    own_fds: list[int] = []
    for item, option, permissions in _with_options(data, tmp_files):
        own_fds.append(sealed_memfd(item.content))
        argv += ["--perms", permissions, option, str(own_fds[-1]), item.destination]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--hostname", "box"]
    argv += ["--new-session", "--die-with-parent", "--clearenv"]
    for name, value in environment.items():
        argv += ["--setenv", name, value]
    if seccomp is not None:
        own_fds.append(sealed_memfd(seccomp))
        argv += ["--seccomp", str(own_fds[-1])]
    argv += ["--", *payload]
    show = [*python.bases, *([python.environment] if python.environment is not None else [])]
    argv[:0] = as_ordinary_user(show)
    return BwrapCommand(argv=tuple(argv), pass_fds=(*own_fds, *keep_fds), own_fds=tuple(own_fds))


def _with_options(data: Iterable[DataFile], tmp_files: Iterable[DataFile]) -> Iterator[tuple[DataFile, str, str]]:
    for item in data:
        yield item, "--ro-bind-data", "0444"
    for item in tmp_files:
        yield item, "--file", "0644"
