"""Process of root -> process of an ordinary user that can still read its Python, even below a closed folder.

The service gives up root before it starts anything. A sandbox that root starts nevertheless runs as `nobody`
(`as_ordinary_user`), because the kernel does not limit the number of root's processes: a fork bomb would stop the
machine.
Run any command that way with
`python -m verl_pivot.sandbox.bubblewrap.privileges [--user U] [--show PATH]... -- COMMAND ...`.
"""

import argparse
import ctypes
import os
import pwd
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.group_tree import make_groups, remove_at_end
from verl_pivot.sandbox.bubblewrap.user_range import make_user_range
from verl_pivot.sandbox.lane.procfs import raise_oom_score
from verl_pivot.sandbox.lane.syscalls import CLONE_NEWNS, give_up_capabilities, unshare

DEFAULT_USER = "nobody"
MESSAGE_PREFIX = "verl-pivot: "
"""Beginning of an error message on stderr that comes from this module and not from the command."""
_MS_RDONLY, _MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
HANDED_PREFIX = "VERL_PIVOT_SANDBOX_HANDED_"
"""Beginning of the environment variables by which a process of root passes open descriptors to itself, when it restarts
as an ordinary user."""
_KEPT_VARIABLES = (
    *(
        "PATH",
        "HOME",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TERM",
        "COLUMNS",
        "NO_COLOR",
        "LD_LIBRARY_PATH",
        "VIRTUAL_ENV",
    ),
    "KUBERNETES_SERVICE_HOST",
)
_KEPT_PREFIXES = ("LC_", "PYTHON", HANDED_PREFIX)
_libc = ctypes.CDLL(None, use_errno=True)


def is_root() -> bool:
    """Whether this process is root, and not an ordinary user that a user namespace only maps to root."""
    maps = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    is_renamed = len(maps) == 1 and maps[0][0] == 0 and maps[0][1] != 0 and maps[0][2] == 1
    return os.geteuid() == 0 and not is_renamed


def drop_root(user: str | None = None, *, with_pods: bool = False) -> None:
    """Restart this process as `user` if it is root, with the same arguments and inheritable descriptors.

    It keeps only the environment variables that Python and this package read, and no token. Root's other variables,
    such as keys, could be read in /proc by every process of the user.

    Returns only if the process is not root. The restart matters: after setuid alone the kernel still protects the
    process as root's, and the process could not read its own /proc/self.

    Args:
        user: Name of the user.
        with_pods: Make the things for a service's programs that only root can make: control groups and a user id range.

    Raises:
        ConfigError: If the user does not exist, is root, or cannot be made to reach this Python.
    """
    if is_root():
        raise_oom_score()
        if with_pods:
            _prepare_pods(account_of(user or DEFAULT_USER))
        become(user or DEFAULT_USER)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], _kept_environment())


def _kept_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES or name.startswith(_KEPT_PREFIXES)
    }


def _prepare_pods(account: pwd.struct_passwd) -> None:
    """Make control groups and user ids that `account` may use, where the machine gives root any."""
    make_user_range(account)
    groups = make_groups((account.pw_uid, account.pw_gid))
    if groups is not None:
        remove_at_end(groups)


def as_ordinary_user(show: Iterable[Path] = ()) -> tuple[str, ...]:
    """Words that go before a command so that root runs it as an ordinary user, with an empty environment.

    Args:
        show: Folders that the command needs to reach.

    Returns:
        The words; none if this process is not root.
    """
    if not is_root():
        return ()
    source = str(Path(__file__).parents[3])
    main = f"import sys; sys.path[:0] = [{source!r}]; from verl_pivot.sandbox.bubblewrap.privileges import main; main()"
    options = [word for path in show for word in ("--show", str(path))]
    return (sys.executable, "-P", "-s", "-B", "-c", main, "--clear-environment", *options, "--")


def command_as(user: str, command: Sequence[str], *, show: Iterable[Path] = ()) -> list[str]:
    """Words of a command that runs as `user` if this process is root, and as this process's user otherwise.

    Args:
        user: Name of an ordinary user.
        command: The command.
        show: Further folders that the command needs to reach.
    """
    options = [word for path in show for word in ("--show", str(path))]
    return [sys.executable, "-m", "verl_pivot.sandbox.bubblewrap.privileges", "--user", user, *options, "--", *command]


def become(user: str, *, show: Iterable[Path] = ()) -> None:
    """Turn this process of root into one of `user` for good, without capabilities and without a way to new ones.

    Raises:
        ConfigError: As in `drop_root`.
    """
    account = account_of(user)
    _show(account, [*_needed(), *show])
    try:
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    except OSError as error:
        raise ConfigError(f"root cannot become {user} here ({error.strerror}): start as an ordinary user") from error
    give_up_capabilities()
    if not os.access(".", os.X_OK):
        os.chdir("/")


def account_of(user: str) -> pwd.struct_passwd:
    """Account of an ordinary user.

    Raises:
        ConfigError: If there is none of this name, or it is root's.
    """
    try:
        account = pwd.getpwnam(user)
    except KeyError as error:
        raise ConfigError(f"user {user!r} does not exist: create it, or give another user") from error
    if account.pw_uid == 0:
        raise ConfigError(f"user {user!r} is root, but the sandbox must not run as root: give an ordinary user")
    return account


def _needed() -> list[Path]:
    """Folders that this Python and this package read."""
    package = Path(__file__).parents[2]
    # In a checkout, configs lies beside the package. configuration.py knows it too, but importing that needs OmegaConf.
    configs = package.parent / "configs"
    found = [Path(sys.base_prefix), Path(sys.prefix), package, *([configs] if configs.is_dir() else [])]
    return [*found, *(path.resolve() for path in found)]


def _show(account: pwd.struct_passwd, needed: Iterable[Path]) -> None:
    """Let `account` reach every path of `needed`, by mounts that only this process and its children see."""
    hidden = {path: gate for path in needed if (gate := _gate(path, account)) is not None}
    if not hidden:
        return
    for path in hidden:
        if not _can_enter(path, account):
            raise ConfigError(f"{account.pw_name} cannot enter {path}, which Python needs: chmod o+rx {path}")
    try:
        unshare(CLONE_NEWNS)
    except PermissionError as error:
        first, gate = next(iter(hidden.items()))
        raise ConfigError(
            f"{account.pw_name} cannot reach {first} through {gate}, and root cannot mount here without CAP_SYS_ADMIN: "
            "put the Python environment where all users can read it, such as /opt, or start as an ordinary user"
        ) from error
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
    for gate in set(hidden.values()):
        _replace(gate, [path for path in hidden if hidden[path] == gate])


def _gate(path: Path, account: pwd.struct_passwd) -> Path | None:
    """Topmost folder above `path` that `account` cannot enter; None if there is none."""
    return next((folder for folder in reversed(path.parents) if not _can_enter(folder, account)), None)


def _can_enter(folder: Path, account: pwd.struct_passwd) -> bool:
    found = folder.stat()
    if found.st_uid == account.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == account.pw_gid else stat.S_IXOTH))


def _replace(gate: Path, paths: list[Path]) -> None:
    """Cover the folder `gate` by one that holds nothing but `paths`, read-only."""
    outermost = [path for path in paths if not any(other in path.parents for other in paths)]
    opened = [(path, os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in outermost]
    _mount("tmpfs", gate, "tmpfs", _MS_NOSUID, "mode=0755,size=1m")
    for path, fd in opened:
        path.mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{fd}", path, None, _MS_BIND | _MS_REC)
        _mount("none", path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID)
        os.close(fd)
    _mount("none", gate, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID)


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, str(target), kind, options)]
    if _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) != 0:
        number = ctypes.get_errno()
        raise ConfigError(
            f"cannot mount on {target}: {os.strerror(number)}: put the Python environment where all users can read it, "
            "such as /opt, or start as an ordinary user"
        )


def main() -> NoReturn:
    """Run a command as another user: the module's own command line."""
    parser = argparse.ArgumentParser(prog="python -m verl_pivot.sandbox.bubblewrap.privileges")
    parser.add_argument("--user", default=DEFAULT_USER)
    parser.add_argument("--show", type=Path, action="append", default=[])
    # needed although the caller gives an empty environment: Python may add LC_CTYPE to it
    parser.add_argument("--clear-environment", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        if is_root():
            become(options.user, show=options.show)
    except ConfigError as error:
        sys.exit(f"{MESSAGE_PREFIX}{error}")
    environment = {} if options.clear_environment else dict(os.environ)
    os.execvpe(options.command[0], options.command, environment)


if __name__ == "__main__":
    main()
