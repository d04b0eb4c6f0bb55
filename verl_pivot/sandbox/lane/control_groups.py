"""A control group for each pod, from a pool: the kernel then bounds all memory and all processes of a pod together.

An rlimit bounds one process, and a watchdog sees pages of processes only. A control group counts what the kernel holds
for a program too: socket and pipe buffers, page tables, files in memory. A process enters its group by itself, which
takes 0.01 ms; moving another one can take 20 ms.
"""

import contextlib
import os
from collections import deque
from dataclasses import dataclass

from verl_pivot.sandbox.lane.confinement import SHM_BYTES
from verl_pivot.sandbox.lane.procfs import MemoryKills

_memory_kills = MemoryKills()
_MIB = 1024**2
_ROOM_BYTES = 16 * _MIB
"""Bytes that a group may use above the limits, in addition to an eighth of the limit on memory. The watchdog, which
allows the same room but none for files, kills a pod before that. A single process meets its rlimit before both."""
_SHARED_COPIES = 2
"""Number of interpreters that may copy all memory that they share with the zygote, which counts for no program."""
_MORE_PROCESSES = 8
"""Number of processes of a pod beside those of its program: they read and write files."""
_TCP_BYTES = 16 * _MIB
_MAX_FREE = 64
_NUM_TRIES = 4
"""Number of free groups that are tried before a new one is made: processes of recent groups may not have ended yet."""
_NUM_AHEAD = 8
_FREEZE, _KILL = "cgroup.freeze", "cgroup.kill"
_FULL_SHARE = 0.9
"""Minimum share of its limit that a group has used if it ran out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFiles:
    """Names of the files of a control group, which differ between the two versions of the kernel's interface."""

    enter: str
    memory_limit: str
    swap_limit: str
    usage: str
    kills: str
    """File with a line "oom_kill N"."""
    most: str
    """File with the most memory that was used so far; "" if `kills` has a line "oom N" with the number of times that
    memory ran out."""
    is_swap_counted_with_memory: bool


FILES = {
    1: GroupFiles(
        enter="tasks",
        memory_limit="memory.limit_in_bytes",
        swap_limit="memory.memsw.limit_in_bytes",
        usage="memory.usage_in_bytes",
        kills="memory.oom_control",
        most="memory.max_usage_in_bytes",
        is_swap_counted_with_memory=True,
    ),
    2: GroupFiles(
        enter="cgroup.procs",
        memory_limit="memory.max",
        swap_limit="memory.swap.max",
        usage="memory.current",
        kills="memory.events",
        most="",
        is_swap_counted_with_memory=False,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFolders:
    """Descriptors of the folders below which groups are made; both are the same folder in version 2."""

    version: int
    memory: int
    pids: int

    @property
    def files(self) -> GroupFiles:
        return FILES[self.version]

    @property
    def all(self) -> tuple[int, ...]:
        return (self.memory,) if self.version == 2 else (self.memory, self.pids)


def group_bytes(memory_bytes: int, tmp_bytes: int, shared_bytes: int) -> int:
    """Limit of a group on all memory, of which the files in /tmp and /dev/shm are a part."""
    room = memory_bytes // 8 + _ROOM_BYTES + _SHARED_COPIES * shared_bytes
    return memory_bytes + room + tmp_bytes + SHM_BYTES


class PodGroup:
    """The control group of one pod."""

    def __init__(self, folders: GroupFolders, name: str) -> None:
        """Make the group.

        Raises:
            OSError: If the kernel refuses.
        """
        self._folders = folders
        self.name = name
        self._memory_bytes = self._num_processes = 0
        self._is_frozen: bool | None = None
        """Whether its processes are stopped; None where the kernel cannot stop them."""
        self.is_given_back = False
        """Whether no pod uses it any more; its counts then belong to no pod."""
        self._num_kills = self._num_times = 0
        """Number of processes that were killed, and of times that memory ran out, before the limits were set."""
        for folder in folders.all:
            os.mkdir(name, 0o755, dir_fd=folder)
        if folders.version == 1:
            # Version 1 counts the buffers of TCP apart; programs can use TCP through a loopback interface.
            self._write_if_known("memory.kmem.tcp.limit_in_bytes", _TCP_BYTES)
        else:
            self._write_if_known("memory.oom.group", 1)
            self._write_if_known(folders.files.swap_limit, 0)
            self._is_frozen = False if self._write_if_known(_FREEZE, 0) else None

    @property
    def is_unused(self) -> bool:
        """Whether all its processes have ended, and the kernel has freed most of their memory."""
        folders, files = self._folders, self._folders.files
        if self._read(folders.pids, "cgroup.procs") or self._read(folders.memory, "cgroup.procs"):
            return False
        return int(self._read(folders.memory, files.usage)) <= max(self._memory_bytes // 8, 4 * _MIB)

    def set_limits(self, *, memory_bytes: int, num_processes: int) -> None:
        """Set the limits of a group without processes."""
        if memory_bytes != self._memory_bytes:
            memory, files = self._folders.memory, self._folders.files
            if files.is_swap_counted_with_memory:
                self._write_if_known(files.swap_limit, -1)
            self._write(memory, files.memory_limit, memory_bytes)
            if files.is_swap_counted_with_memory:
                self._write_if_known(files.swap_limit, memory_bytes)
            self._memory_bytes = memory_bytes
        if num_processes != self._num_processes:
            self._write(self._folders.pids, "pids.max", num_processes + _MORE_PROCESSES)
            self._num_processes = num_processes
        self._num_kills = self._counted(b"oom_kill")
        if self._folders.files.most:
            if self._most_bytes() > memory_bytes // 2:
                self._write(self._folders.memory, self._folders.files.most, 0)
        else:
            self._num_times = self._counted(b"oom")

    def entrances(self) -> tuple[int, ...]:
        """Descriptors by which a process enters, see confinement.enter_groups; the caller closes them."""
        return tuple(self._open(folder, self._folders.files.enter, os.O_WRONLY) for folder in self._folders.all)

    def admit(self, pid: int) -> None:
        """Put a process into the group, and so all that it will start."""
        for fd in self.entrances():
            try:
                os.write(fd, b"%d" % pid)
            finally:
                os.close(fd)

    def set_frozen(self, *, is_frozen: bool) -> bool:
        """Stop all processes of the group, also those that they will start, or let them go on, without any signal.

        False where the kernel cannot: version 1, and version 2 before Linux 5.2.
        """
        if self._is_frozen is None:
            return False
        if is_frozen != self._is_frozen:
            self._write(self._folders.memory, _FREEZE, int(is_frozen))
            self._is_frozen = is_frozen
        return True

    def kill(self) -> None:
        """Kill all processes of the group at once where the kernel can, and leave the group thawed."""
        if self._folders.version == 2:
            self._write_if_known(_KILL, 1)  # since Linux 5.14
            self.set_frozen(is_frozen=False)

    def has_run_out(self) -> bool:
        """Whether the kernel has killed a process of the group for its memory limit since the limits were set.

        A kill for another reason does not count: the whole machine may have run out of memory.
        """
        if not self.has_lost_processes():
            return False
        if self._folders.files.most:
            return self._most_bytes() > _FULL_SHARE * self._memory_bytes
        return self._counted(b"oom") > self._num_times

    def has_lost_processes(self) -> bool:
        """Whether the kernel has killed a process of the group because the group or the machine ran out of memory.

        False for a group that was given back: it may be removed, and the reason why its pod ended is known.
        """
        return not self.is_given_back and self._counted(b"oom_kill") > self._num_kills

    def cpu_seconds(self) -> float | None:
        """CPU time of all processes that were ever in it; None in version 1, which counts it elsewhere.

        Also None for a group that was given back, which may be removed.
        """
        if self._folders.version == 1 or self.is_given_back:
            return None
        words = self._read(self._folders.memory, "cpu.stat").split()
        return int(words[words.index(b"usage_usec") + 1]) / 1e6

    def remove(self) -> None:
        """Remove the group; if its last processes are just ending, it stays until the folder around it is removed."""
        for folder in self._folders.all:
            with contextlib.suppress(OSError):
                os.rmdir(self.name, dir_fd=folder)

    def _counted(self, name: bytes) -> int:
        words = self._read(self._folders.memory, self._folders.files.kills).split()
        return int(words[words.index(name) + 1])

    def _most_bytes(self) -> int:
        return int(self._read(self._folders.memory, self._folders.files.most))

    def _write_if_known(self, file: str, value: int) -> bool:
        """Write a file; False if the kernel has none of this name, since it is older or built without it."""
        try:
            self._write(self._folders.memory, file, value)
        except FileNotFoundError:
            return False
        return True

    def _write(self, folder: int, file: str, value: int) -> None:
        fd = self._open(folder, file, os.O_WRONLY)
        try:
            os.write(fd, b"%d" % value)
        finally:
            os.close(fd)

    def _read(self, folder: int, file: str) -> bytes:
        fd = self._open(folder, file, os.O_RDONLY)
        try:
            return os.read(fd, 4096)
        finally:
            os.close(fd)

    def _open(self, folder: int, file: str, flags: int) -> int:
        return os.open(f"{self.name}/{file}", flags | os.O_CLOEXEC, dir_fd=folder)


def machine_ran_out(group: PodGroup | None, since: float) -> bool:
    """Whether the kernel has killed processes of a pod because the machine, and not the pod, ran out of memory.

    Args:
        group: Control group of the pod; without one, any kill on the machine counts.
        since: Time on the monotonic clock from which on a kill counts, where there is no group.
    """
    if group is None:
        return _memory_kills.noticed_since(since)
    return group.has_lost_processes() and not group.has_run_out()


class CpuCounter:
    """CPU seconds of the processes of a pod from now on, also of those that start and end unseen."""

    def __init__(self, group: PodGroup | None) -> None:
        self._group = group
        self._before = None if group is None else group.cpu_seconds()

    @property
    def used_seconds(self) -> float:
        """CPU seconds since the beginning; 0 where no group counts them."""
        now = None if self._group is None else self._group.cpu_seconds()
        return 0.0 if now is None or self._before is None else now - self._before


class GroupPool:
    """Groups made ahead. An empty group is used again, as removing it would take the kernel longer."""

    def __init__(self, folders: GroupFolders) -> None:
        self._folders = folders
        self._num_made = 0
        self._free = deque(self._make() for _ in range(_NUM_AHEAD))

    def take(self, *, memory_bytes: int, num_processes: int) -> PodGroup:
        """A group without processes, with these limits.

        Raises:
            OSError: If the kernel makes no further group.
        """
        for _ in range(min(_NUM_TRIES, len(self._free))):
            group = self._free.popleft()
            if not group.is_unused:
                self._free.append(group)
                continue
            try:
                group.set_limits(memory_bytes=memory_bytes, num_processes=num_processes)
            except OSError:  # the memory that it still counts does not fit below a smaller limit
                group.remove()
                continue
            group.is_given_back = False
            return group
        group = self._make()
        group.set_limits(memory_bytes=memory_bytes, num_processes=num_processes)
        return group

    def give_back(self, group: PodGroup) -> None:
        """Take back a group whose processes have ended, or have been killed and are about to."""
        group.kill()
        group.is_given_back = True
        self._free.append(group)
        if len(self._free) > _MAX_FREE:
            self._free.popleft().remove()

    def _make(self) -> PodGroup:
        self._num_made += 1
        return PodGroup(self._folders, f"pod-{self._num_made}")
