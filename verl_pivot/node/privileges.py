"""A process of root -> one of an ordinary user that still reaches its Python, even below a folder closed to it.

The service drops root before it starts anything; a sandbox that root starts nevertheless is given to `nobody` by
`as_ordinary_user`, because the kernel does not count the processes of root: a fork bomb would take the machine.
`python -m verl_pivot.node.privileges [--user U] [--show PATH]... -- COMMAND ...` runs any command that way.
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
from verl_pivot.lane.kernel import CLONE_NEWNS, drop_capabilities, unshare

DEFAULT_USER = "nobody"
OUR_WORDS = "verl-pivot: "
"""Begins what we say on stderr in place of the command."""
_MS_RDONLY, _MS_NOSUID, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def is_root() -> bool:
    """Whether we are root, and not an ordinary user whom a user namespace of its own calls so."""
    maps = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    is_renamed = len(maps) == 1 and maps[0][0] == 0 and maps[0][1] != 0 and maps[0][2] == 1
    return os.geteuid() == 0 and not is_renamed


def drop_root(user: str | None = None) -> None:
    """Start this process anew as `user`, with the same arguments, environment and inheritable descriptors.

    Returns only where it is not root already. The restart matters: after setuid alone the kernel still guards the
    process as root's, and it could not read its own /proc/self.

    Raises:
        ConfigError: If the user does not exist, is root, or cannot be made to reach this Python.
    """
    if is_root():
        become(user or DEFAULT_USER)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def as_ordinary_user(show: Iterable[Path] = ()) -> tuple[str, ...]:
    """What goes before a command so that it does not run as root; empty where we are not. Its environment is empty."""
    if not is_root():
        return ()
    source = str(Path(__file__).parent.parent.parent)
    main = f"import sys; sys.path[:0] = [{source!r}]; from verl_pivot.node.privileges import main; main()"
    options = [word for path in show for word in ("--show", str(path))]
    return (sys.executable, "-P", "-s", "-B", "-c", main, "--clear-environment", *options, "--")


def command_as(user: str, command: Sequence[str], *, show: Iterable[Path] = ()) -> list[str]:
    """`command`, run as `user` where we are root, and as ourselves otherwise. `show` are folders that it needs too."""
    options = [word for path in show for word in ("--show", str(path))]
    return [sys.executable, "-m", "verl_pivot.node.privileges", "--user", user, *options, "--", *command]


def become(user: str, *, show: Iterable[Path] = ()) -> None:
    """Turn root into `user` for good, with no capability and no way to a new one.

    Raises:
        ConfigError: As in drop_root.
    """
    try:
        account = pwd.getpwnam(user)
    except KeyError as error:
        raise ConfigError(f"user {user!r} does not exist: create it, or name another") from error
    if account.pw_uid == 0:
        raise ConfigError(f"user {user!r} is root, which the sandbox is to get rid of: name an ordinary user")
    _show(account, [*_needed(), *show])
    try:
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    except OSError as error:
        raise ConfigError(f"this root may not become {user} ({error.strerror}): start as an ordinary user") from error
    drop_capabilities()
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if not os.access(".", os.X_OK):
        os.chdir("/")


def _needed() -> list[Path]:
    """What this Python and our package read."""
    package = Path(__file__).parent.parent
    # Beside the package in a checkout; configuration.py finds it too, but importing it takes OmegaConf.
    configs = package.parent / "configs"
    found = [Path(sys.base_prefix), Path(sys.prefix), package, *([configs] if configs.is_dir() else [])]
    return [*found, *(path.resolve() for path in found)]


def _show(account: pwd.struct_passwd, needed: Iterable[Path]) -> None:
    """Let `account` reach every path of `needed`; the mounts are seen by this process and its children alone."""
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
            f"{account.pw_name} cannot reach {first} through {gate}, and this root may not mount (CAP_SYS_ADMIN): "
            "put the Python environment where all may read it, such as /opt, or start as an ordinary user"
        ) from error
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
    for gate in set(hidden.values()):
        _replace(gate, [path for path in hidden if hidden[path] == gate])


def _gate(path: Path, account: pwd.struct_passwd) -> Path | None:
    """The topmost folder above `path` that `account` cannot enter."""
    return next((folder for folder in reversed(path.parents) if not _can_enter(folder, account)), None)


def _can_enter(folder: Path, account: pwd.struct_passwd) -> bool:
    found = folder.stat()
    if found.st_uid == account.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    return bool(found.st_mode & (stat.S_IXGRP if found.st_gid == account.pw_gid else stat.S_IXOTH))


def _replace(gate: Path, paths: list[Path]) -> None:
    """Cover `gate` by a folder in which there is nothing but `paths`, read-only."""
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
            f"cannot mount on {target}: {os.strerror(number)}: put the Python environment where all may read it, "
            "such as /opt, or start as an ordinary user"
        )


def main() -> NoReturn:
    """Become the user and execute the command."""
    parser = argparse.ArgumentParser(prog="python -m verl_pivot.node.privileges")
    parser.add_argument("--user", default=DEFAULT_USER)
    parser.add_argument("--show", type=Path, action="append", default=[])
    # Python may add LC_CTYPE to an environment that was empty.
    parser.add_argument("--clear-environment", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        if is_root():
            become(options.user, show=options.show)
    except ConfigError as error:
        sys.exit(f"{OUR_WORDS}{error}")
    environment = {} if options.clear_environment else dict(os.environ)
    os.execvpe(options.command[0], options.command, environment)


if __name__ == "__main__":
    main()
