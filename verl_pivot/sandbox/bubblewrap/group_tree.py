"""Control groups of a service: a folder of its own, made by root before the service becomes an ordinary user.

In version 1 an ordinary user gets a folder only from root. In version 2 also from systemd, which delegates one:
`systemd-run --user --scope -p Delegate=yes`.
"""

import asyncio
import contextlib
import fcntl
import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.sandbox.lane.control_groups import FILES, GroupFolders
from verl_pivot.sandbox.lane.syscalls import CAP_DAC_OVERRIDE, give_up_capabilities

CONTROLLERS = ("memory", "pids")
_PREFIX = "verl-pivot-"
_LOCK_VARIABLE = "VERL_PIVOT_SANDBOX_HANDED_GROUPS_LOCK"
_SWEEP_SECONDS = 10.0
_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTree:
    """The folders below which a service makes its control groups."""

    version: int
    """Version of the kernel's interface."""
    memory: Path
    pids: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.memory,) if self.memory == self.pids else (self.memory, self.pids)

    def below(self, name: str) -> "GroupTree":
        """The tree of the folder `name` in this tree's folders."""
        return GroupTree(version=self.version, memory=self.memory / name, pids=self.pids / name)

    @contextlib.contextmanager
    def opened(self) -> Iterator[GroupFolders]:
        """Descriptors of the folders, until the end of the block."""
        fds = [os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in (self.memory, self.pids)]
        try:
            yield GroupFolders(version=self.version, memory=fds[0], pids=fds[1])
        finally:
            for fd in fds:
                os.close(fd)

    def make(self) -> "GroupTree":
        """Make the folders, below which groups can be made."""
        for folder in self.make_folders().folders:
            if self.version == 2:
                _enable(folder)
        return self

    def make_folders(self) -> "GroupTree":
        """Make the folders; folders that are left from a killed process with the same id are used again."""
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        return self

    async def removed(self) -> bool:
        """Remove the folders when the processes in them have ended; False if a process still runs after 10 s."""
        for _ in range(int(_SWEEP_SECONDS / _PAUSE_SECONDS)):
            if self.remove():
                return True
            await asyncio.sleep(_PAUSE_SECONDS)
        return False

    def remove(self) -> bool:
        """Remove the folders with everything below them; False if a process is left in them."""
        removed = [_remove(folder) for folder in self.folders]
        return all(removed)


def own_groups(proc: Path = Path("/proc/self")) -> GroupTree | None:
    """The control groups that this process is in; None where memory or processes cannot be counted.

    Args:
        proc: Folder of this process in /proc.
    """
    mounted = _mounted(proc)
    if set(CONTROLLERS) <= mounted.keys():
        return GroupTree(version=1, memory=mounted["memory"][0], pids=mounted["pids"][0])
    if "" in mounted and set(CONTROLLERS) <= set((mounted[""][0] / "cgroup.controllers").read_text().split()):
        return GroupTree(version=2, memory=mounted[""][0], pids=mounted[""][0])
    return None


def memory_limits(proc: Path = Path("/proc/self")) -> list[int]:
    """Limits on memory of the control groups that this process is in, and of those around them.

    Args:
        proc: Folder of this process in /proc.
    """
    found: list[int] = []
    mounted = _mounted(proc)
    for controller, file in (("memory", FILES[1].memory_limit), ("", FILES[2].memory_limit)):
        folder, top = mounted.get(controller, (Path("/"), Path("/")))
        for each in (folder, *folder.parents):
            if (
                each.is_relative_to(top)
                and (each / file).is_file()
                and (text := (each / file).read_text()).strip().isdigit()
            ):
                found.append(int(text))
    return found


def _mounted(proc: Path) -> dict[str, tuple[Path, Path]]:
    """Controller, or "" for version 2 -> folder of the group of a process, and where the hierarchy is mounted."""
    paths: dict[str, str] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    mounted: dict[str, tuple[Path, Path]] = {}
    for line in (proc / "mountinfo").read_text().splitlines():
        words = line.split()
        kind, _, options = words[words.index("-") + 1 :][:3]
        shown = {"cgroup": options.split(","), "cgroup2": [""]}
        for name in shown.get(kind, []):
            if name in paths and (folder := _folder(paths[name], root=words[3], mount=words[4])) is not None:
                mounted.setdefault(name, (folder, Path(words[4])))
    return mounted


def may_have_groups() -> bool:
    """Whether a service that this user starts gets control groups."""
    own = own_groups()
    return own is not None and all(os.access(folder, os.W_OK) for folder in own.folders)


def groups_of_service() -> GroupTree | None:
    """The tree that `make_groups` made for this process, before or after a restart as another user; None if none."""
    lock = os.environ.pop(_LOCK_VARIABLE, None)
    if lock is not None:
        os.set_inheritable(int(lock), False)
    own = own_groups()
    if own is None:
        return None
    name = f"{_PREFIX}{os.getpid()}"
    found = own.below(name)
    if own.version == 2:
        base = own.memory.parent
        found = GroupTree(version=2, memory=base / "pods", pids=base / "pods") if base.name == name else found
    return found if all(os.access(folder, os.W_OK) for folder in found.folders) else None


def make_groups(owner: tuple[int, int] | None = None) -> GroupTree | None:
    """Make the control groups of this process; None where the machine gives it none.

    Args:
        owner: User and group id that will own the groups; None for those of this process, which must not be root then.
    """
    own = own_groups()
    if own is None or not may_have_groups() or (owner is None and os.geteuid() == 0):
        return None
    remove_abandoned(own)
    tree = own.below(f"{_PREFIX}{os.getpid()}")
    if not _hold(tree, is_handed_on=owner is not None):
        return None
    try:
        if own.version == 2:
            tree = _make_version_2(own, tree)
        else:
            tree.make()
    except OSError:
        tree.remove()
        return None
    for folder in (*tree.folders, *((tree.memory.parent,) if own.version == 2 else ())):
        for path in (folder, *folder.glob("cgroup.*"), *folder.glob("tasks")):
            if owner is not None:
                os.chown(path, *owner)
    return tree


def remove_abandoned(own: GroupTree) -> None:
    """Remove the groups of services that were killed together with the process that should have removed them.

    A living service of another pid namespace is recognized by its lock, as its process id means nothing here.

    Args:
        own: Group below which services that are started here make theirs.
    """
    for name in sorted({path.name for folder in own.folders for path in folder.glob(f"{_PREFIX}*")}):
        if not Path("/proc", name.removeprefix(_PREFIX)).exists() and not _is_locked(own.memory / name):
            own.below(name).remove()


def _hold(tree: GroupTree, *, is_handed_on: bool) -> bool:
    """Make the folders and lock them for the life of this process.

    False if they cannot be made, or a process of another pid namespace with the same id has them.

    Args:
        tree: The folders.
        is_handed_on: Whether this process restarts as another user.
    """
    try:
        fd = _locked(tree.make_folders().memory)
    except OSError:
        return False
    if is_handed_on:
        os.set_inheritable(fd, True)
        os.environ[_LOCK_VARIABLE] = str(fd)
    return True


def _is_locked(folder: Path) -> bool:
    try:
        os.close(_locked(folder))
    except BlockingIOError:
        return True
    except FileNotFoundError:  # half of it was removed, or all of it at this moment
        return False
    return False


def _locked(folder: Path) -> int:
    """Descriptor of a folder that is locked until it is closed.

    Raises:
        OSError: If there is no such folder, or another process holds its lock.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def remove_at_end(tree: GroupTree) -> None:
    """Remove the groups when this process has ended.

    A child does it as root, as an ordinary user may not remove the topmost folder. The child keeps no open file but the
    pidfd of this process, and no capability but the one to change folders of others. In version 2 nothing is done:
    whoever gave this process its group removes the groups below it, too.
    """
    if tree.version == 2:
        return
    parent = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        try:
            os.setsid()
            os.chdir("/")
            os.closerange(0, parent)
            os.closerange(parent + 1, 1 << 16)
            give_up_capabilities(kept=CAP_DAC_OVERRIDE)
            select.select([parent], [], [])
            end = time.monotonic() + _SWEEP_SECONDS
            while not tree.remove() and time.monotonic() < end:
                time.sleep(_PAUSE_SECONDS)
        finally:
            os._exit(0)
    os.close(parent)


def _make_version_2(own: GroupTree, tree: GroupTree) -> GroupTree:
    """Make `tree` with a group for this process and a folder for pods.

    They are apart because a group that holds processes may have no groups below it.
    """
    base, service, pods = tree.memory, tree.memory / "service", tree.below("pods")
    service.mkdir(exist_ok=True)
    (service / "cgroup.procs").write_text("0")
    try:
        _enable(own.memory)
        _enable(base)
        return pods.make()
    except OSError:
        (own.memory / "cgroup.procs").write_text("0")
        raise


def _enable(folder: Path) -> None:
    """Let the groups below a folder of version 2 count memory and processes."""
    file = folder / "cgroup.subtree_control"
    if not set(CONTROLLERS) <= set(file.read_text().split()):
        file.write_text(" ".join(f"+{name}" for name in CONTROLLERS))


def _folder(path: str, *, root: str, mount: str) -> Path | None:
    """Folder of the group `path` of a hierarchy whose group `root` is mounted on `mount`; None if it is outside."""
    below = os.path.relpath(path, root)
    return None if below.startswith("..") else Path(mount, below)


def _remove(folder: Path) -> bool:
    try:
        for child in folder.iterdir():
            if child.is_dir():
                _remove(child)
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
