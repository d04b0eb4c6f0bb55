"""Command line of bubblewrap with its file descriptors, for a lane, one program or a server. Starts nothing.

CVE-2026-87766 (bubblewrap < 0.12.0): a mount below a symbolic link that a program placed creates folders on the host.
Not possible here: every mount goes to a constant path, to a path of the host's own Python or to one from the file of
languages, in a root that is empty and that no program has seen yet. No folder that a program could write is mounted,
except the folder of a server of the user's own, at a constant path. All else that such a server sees lies at paths that
the user gives.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.privileges import as_ordinary_user
from verl_pivot.sandbox.bubblewrap.python_view import VENV, PythonView, is_below
from verl_pivot.sandbox.execution import MIB, Limits
from verl_pivot.sandbox.lane.confinement import SHM_BYTES
from verl_pivot.sandbox.lane.fd_passing import sealed_memory_file
from verl_pivot.sandbox.lane.task_root import ROOTS

TRUSTED_FOLDERS = (Path("/usr/bin"), Path("/usr/local/bin"), Path("/bin"))
"""Folders in which bwrap is looked for. The caller's PATH does not count: it may name folders that others can write."""
MINIMUM_VERSION = (0, 6, 0)
"""First version of bubblewrap with --size."""
DISABLE_USERNS_VERSION = (0, 8, 0)
"""First version of bubblewrap with --disable-userns."""
LIBRARY = "/sandbox"
"""Folder inside the sandbox that holds the trusted part of this package."""
LANE_CAPABILITIES = ("CAP_SYS_ADMIN", "CAP_SETFCAP", "CAP_SYS_CHROOT", "CAP_NET_ADMIN", "CAP_SYS_PTRACE")
USER_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SYS_NICE")
"""Capabilities of a lane whose programs have user ids of their own."""
SERVER_FOLDER = "/folder"
"""Folder inside the sandbox that a server of the user's own can change."""
SERVER_TMP_BYTES = 256 * MIB
"""Size of the /tmp of a server of the user's own."""
PROGRAM_UID = 1000
"""User and group id of programs inside a sandbox."""
_MERGED_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
FOLDERS_OF_ETC = (
    "alternatives",
    *("ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted"),  # certificates of public authorities
)
FILES_OF_ETC = ("ld.so.cache", "localtime")
_ETC_DATA = {
    "passwd": "root:x:0:0:root:/tmp:/bin/sh\n"
    f"sandbox:x:{PROGRAM_UID}:{PROGRAM_UID}:sandbox:/tmp:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nsandbox:x:{PROGRAM_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_PACKAGE = Path(__file__).parents[2]


def find_bwrap(folders: Iterable[Path] = TRUSTED_FOLDERS) -> Path:
    """Path of the bubblewrap executable.

    Raises:
        ConfigError: If none of `folders` has one.
    """
    folders = tuple(folders)
    for folder in folders:
        path = folder / "bwrap"
        if os.access(path, os.X_OK):
            return path
    raise ConfigError(f"bwrap was not found in {', '.join(map(str, folders))}: sudo apt-get install -y bubblewrap")


def parse_version(text: str) -> tuple[int, int, int]:
    """`bubblewrap 0.8.0` -> (0, 8, 0).

    Raises:
        ConfigError: If `text` holds no version.
    """
    match = re.search(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", text)
    if match is None:
        raise ConfigError(f"`bwrap --version` answered {text.strip()!r}, which holds no version: reinstall bubblewrap")
    return int(match[1]), int(match[2]), int(match[3] or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A file that bubblewrap makes from bytes: read-only below /etc, writable below /tmp."""

    destination: str | bytes
    """Path inside the sandbox."""
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BwrapCommand:
    """A command to spawn: `Popen(command.argv, env={}, pass_fds=command.pass_fds)`, then `command.close()`.

    env={} matters: bwrap's own environment can be read in the sandbox's /proc/1/environ, even with --clearenv.
    """

    argv: tuple[str | bytes, ...]
    pass_fds: tuple[int, ...]
    """File descriptors that the command needs: `own_fds`, and the caller's `keep_fds`."""
    own_fds: tuple[int, ...]
    """File descriptors that were made for this command."""

    def close(self) -> None:
        """Close `own_fds`; once, after the spawn."""
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
    user_range: int | None = None,
    python_options: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    roots: Path | None = None,
    folders: Mapping[str, Path] = MappingProxyType({}),
) -> BwrapCommand:
    """Command of a lane: `lane.supervisor.main(*arguments)`, as root of its namespaces, which may make further ones.

    It has neither --disable-userns nor a seccomp filter: each pod sets its own. It has --uid 0, because with any other
    id bwrap nests a second user namespace, which does not own the pid namespace.

    Args:
        python: Python that the lane runs.
        arguments: Arguments of the supervisor.
        bwrap: Path of bubblewrap.
        keep_fds: File descriptors that the lane inherits under the same numbers.
        mount_proc: Whether the lane gets a /proc.
        capabilities: Capabilities that the lane keeps inside its namespaces.
        user_range: Descriptor of a user namespace with ids for programs, which the lane then joins; see user_range.py.
        python_options: Further options of the interpreter.
        environment: Variables beside those of `standard_environment`.
        roots: Folder of root file systems that pods can change to. It adds CAP_DAC_OVERRIDE, as an overlay's own folder
            has mode 000; the capability covers only files of the service's user.
        folders: {path in the lane: folder of the host} that pods show read-only to some languages.
    """
    main = (
        f"import sys; sys.path[:0] = [{LIBRARY!r}]; sys.path += {list(python.site_packages)!r}; "
        "from verl_pivot.sandbox.lane.supervisor import main; main(*sys.argv[1:])"
    )
    # Not --unshare-all, which includes a cgroup namespace: the lane makes control groups outside of its own group. Each
    # program is confined to its group later.
    options = ["--unshare-user"] if user_range is None else ["--userns", str(user_range)]
    options += [f"--unshare-{kind}" for kind in ("ipc", "pid", "net", "uts")]
    options += ["--uid", "0", "--gid", "0", "--cap-drop", "ALL"]
    for capability in (*capabilities, *(() if user_range is None else USER_CAPABILITIES)):
        options += ["--cap-add", capability]
    options += _view(python, FOLDERS_OF_ETC)
    if roots is not None:
        options += ["--ro-bind", str(roots), ROOTS, "--cap-add", "CAP_DAC_OVERRIDE"]
    options += shown_folders(folders)
    options += [*_open_to_all(Path(LIBRARY, "verl_pivot")), *_open_to_all(Path(LIBRARY, "verl_pivot/sandbox"))]
    options += ["--ro-bind", str(_PACKAGE / "sandbox/lane"), f"{LIBRARY}/verl_pivot/sandbox/lane"]
    # -P -s -S -B instead of -I, which would ignore PYTHONHASHSEED; the environment is a constant.
    payload = [python.executable, "-P", "-s", "-S", "-B", *python_options, "-c", main, *arguments]
    return _command(
        python,
        [str(bwrap), *options, *_mounts(mount_proc=mount_proc, tmp_bytes=64 * MIB)],
        _files_of_lane(),
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
    folders: Mapping[str, Path] = MappingProxyType({}),
    devices: Iterable[Path] = (),
) -> BwrapCommand:
    """Command of one program in namespaces of its own, without capabilities and without a way to user namespaces.

    Args:
        python: Python that the sandbox shows.
        payload: Words of the command to run; `with_limits` puts the limits before a program.
        bwrap: Path of bubblewrap.
        version: Version of bubblewrap.
        tmp_bytes: Size of /tmp.
        seccomp: System call filter, as compiled cBPF.
        files: Files that are written below /tmp.
        keep_fds: File descriptors that the payload inherits under the same numbers.
        mount_proc: Whether the sandbox gets a /proc.
        as_pid_1: Make the payload PID 1; then it must be trusted. Otherwise bubblewrap's own reaper is PID 1.
        library: One trusted file, which the sandbox shows in LIBRARY.
        folders: {path in the sandbox: folder of the host} that it shows read-only.
        devices: Devices of the host that the program may use.
    """
    uid = str(PROGRAM_UID)
    options = ["--unshare-all", "--unshare-user", "--uid", uid, "--gid", uid, "--cap-drop", "ALL"]
    if version >= DISABLE_USERNS_VERSION:  # in older versions the seccomp filter alone refuses user namespaces
        options.append("--disable-userns")
    if as_pid_1:
        options.append("--as-pid-1")
    options += _view(python, (*FOLDERS_OF_ETC, *FILES_OF_ETC))
    options += shown_folders(folders)
    if library is not None:
        options += ["--ro-bind", str(library), f"{LIBRARY}/{library.name}"]
    mounts = _mounts(mount_proc=mount_proc, tmp_bytes=tmp_bytes)
    if mount_proc:
        mounts += ["--remount-ro", "/proc"]  # else a program could lower its oom_score_adj
    mounts += [word for device in devices for word in ("--dev-bind", str(device), str(device))]
    return _command(
        python,
        [str(bwrap), *options, *mounts],
        _etc_data(),
        tuple(payload),
        keep_fds=keep_fds,
        environment=standard_environment(python),
        tmp_files=tuple(files),
        seccomp=seccomp,
    )


def server_command(
    words: Iterable[str],
    *,
    bwrap: Path,
    version: tuple[int, int, int],
    seccomp: bytes,
    shown: Iterable[Path],
    folder: Path,
    has_network: bool,
    mount_proc: bool = True,
) -> BwrapCommand:
    """Command of a server of the user's own, which sees a few folders of the machine at their own paths.

    Unlike a program of the policy, it keeps the environment of the process that starts it. A signal ends bubblewrap
    itself, and with it all processes of the sandbox.

    Args:
        words: The server's program and arguments.
        bwrap: Path of bubblewrap.
        version: Version of bubblewrap.
        seccomp: System call filter, as compiled cBPF.
        shown: Files and folders of the machine that it can read, beside /usr and what belongs to it.
        folder: Folder of the machine that it can change, shown at SERVER_FOLDER, where it starts.
        has_network: Whether it shares the machine's network; otherwise it has only a loopback device of its own.
        mount_proc: Whether the sandbox gets a /proc.
    """
    uid = str(PROGRAM_UID)
    options = ["--unshare-all", "--unshare-user", "--uid", uid, "--gid", uid, "--cap-drop", "ALL"]
    if has_network:
        options.append("--share-net")
    if version >= DISABLE_USERNS_VERSION:
        options.append("--disable-userns")
    own = ("passwd", "group") if has_network else _ETC_DATA
    names = ("resolv.conf", "hosts", "nsswitch.conf") if has_network else ()
    options += view_of_system((*FOLDERS_OF_ETC, *FILES_OF_ETC, *names))
    options += _mounts(mount_proc=mount_proc, tmp_bytes=SERVER_TMP_BYTES)
    options += shown_folders({str(path): path for path in sorted(shown)})
    options += ["--bind", str(folder), SERVER_FOLDER]
    fds = [sealed_memory_file(seccomp)]
    for name in own:
        fds.append(sealed_memory_file(_ETC_DATA[name].encode()))
        options += ["--perms", "0444", "--ro-bind-data", str(fds[-1]), f"/etc/{name}"]
    options += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", SERVER_FOLDER, "--hostname", "box"]
    options += ["--die-with-parent", "--seccomp", str(fds[0]), "--", *words]
    return BwrapCommand(argv=(str(bwrap), *options), pass_fds=tuple(fds), own_fds=tuple(fds))


def with_limits(limits: Limits, payload: Iterable[str]) -> tuple[str, ...]:
    """Put prlimit before a command that runs inside the sandbox: processes are counted per user namespace."""
    return (
        "/usr/bin/prlimit",
        f"--nproc={limits.num_processes}:{limits.num_processes}",
        f"--nofile={limits.num_open_files}:{limits.num_open_files}",
        f"--cpu={limits.cpu_seconds}:{limits.cpu_seconds + 1}",
        f"--fsize={limits.tmp_bytes}:{limits.tmp_bytes}",
        f"--data={limits.memory_bytes}:{limits.memory_bytes}",
        "--msgqueue=0:0",
        "--memlock=0:0",
        "--",
        *payload,
    )


def standard_environment(python: PythonView) -> dict[str, str]:
    """Environment of every program; the same everywhere, except for the folder of Python."""
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


def _etc_data() -> list[DataFile]:
    """Files of /etc that are the same on every machine."""
    return [DataFile(destination=f"/etc/{name}", content=text.encode()) for name, text in _ETC_DATA.items()]


def _files_of_lane() -> list[DataFile]:
    """Single files that a lane shows, as copies: a mount would reveal where the file lies on the machine."""
    etc = [(f"/etc/{name}", Path("/etc", name)) for name in FILES_OF_ETC]
    package = [(f"{LIBRARY}/verl_pivot/{name}", _PACKAGE / name) for name in ("__init__.py", "sandbox/__init__.py")]
    shown = [(place, file) for place, file in (*etc, *package) if file.is_file()]
    return [*_etc_data(), *(DataFile(destination=place, content=file.read_bytes()) for place, file in shown)]


def _view(python: PythonView, from_etc: Iterable[str]) -> list[str]:
    """Options that show the system and Python, read-only."""
    view = view_of_system(from_etc)
    for base in python.bases:
        if not is_below(base, Path("/usr")):
            view += shown_folders({str(base): base})
    if python.environment is not None:
        view += ["--ro-bind", str(python.environment), VENV]
    return view


def view_of_system(from_etc: Iterable[str]) -> list[str]:
    """Options that show /usr, the folders of / that belong to it, and entries of /etc, all read-only."""
    view = ["--ro-bind", "/usr", "/usr", *_open_to_all(Path("/etc")), *_open_to_all(Path(LIBRARY))]
    for name in _MERGED_USR:
        folder = Path("/", name)
        if folder.is_symlink():
            view += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            view += ["--ro-bind", str(folder), str(folder)]
    for name in from_etc:
        view += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return view


def shown_folders(folders: Mapping[str, Path]) -> list[str]:
    """Options that show folders of the host read-only: {path in the sandbox: folder of the host}."""
    words: list[str] = []
    for place, source in folders.items():
        words += [word for folder in reversed(Path(place).parents[:-1]) for word in _open_to_all(folder)]
        words += ["--ro-bind", str(source), place]
    return words


def _open_to_all(folder: Path) -> tuple[str, ...]:
    """Options that make a folder which programs with user ids of their own can enter."""
    return ("--perms", "0755", "--dir", str(folder))


def _mounts(*, mount_proc: bool, tmp_bytes: int) -> list[str]:
    """Options that mount /proc and the writable folders, of limited size; bwrap cannot limit the number of files."""
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
    """Complete a command with the options that all commands share.

    Makes one file descriptor per file, as bwrap reads each descriptor to its end.
    """
    argv: list[str | bytes] = [*head]
    own_fds: list[int] = []
    for item, option, permissions in _with_options(data, tmp_files):
        own_fds.append(sealed_memory_file(item.content))
        argv += ["--perms", permissions, option, str(own_fds[-1]), item.destination]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--hostname", "box"]
    argv += ["--new-session", "--die-with-parent", "--clearenv"]
    for name, value in environment.items():
        argv += ["--setenv", name, value]
    if seccomp is not None:
        own_fds.append(sealed_memory_file(seccomp))
        argv += ["--seccomp", str(own_fds[-1])]
    argv += ["--", *payload]
    show = [*python.bases, *([python.environment] if python.environment is not None else [])]
    argv[:0] = as_ordinary_user(show)
    return BwrapCommand(argv=tuple(argv), pass_fds=(*own_fds, *keep_fds), own_fds=tuple(own_fds))


def _with_options(data: Iterable[DataFile], tmp_files: Iterable[DataFile]) -> Iterator[tuple[DataFile, str, str]]:
    """Yield (file, option of bwrap, permissions)."""
    for item in data:
        yield item, "--ro-bind-data", "0444"
    for item in tmp_files:
        yield item, "--file", "0644"
