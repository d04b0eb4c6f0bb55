"""/proc -> memory, CPU time and process groups of a pod: what no rlimit bounds."""

import os
from dataclasses import dataclass
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_PF_EXITING = 0x4
_LOW_PRIORITY = 19
_ASLEEP = frozenset((b"S", b"D", b"T", b"Z", b"X"))


class Process(NamedTuple):
    """One line of /proc/PID/stat."""

    pid: int
    parent: int
    group: int
    is_asleep: bool
    cpu_seconds: float
    num_threads: int
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at a pod."""

    memory_bytes: int
    """Above what a fresh interpreter shares with its zygote."""
    cpu_seconds: float
    pids: tuple[int, ...]
    num_threads: int
    """Of all its processes."""
    is_asleep: bool
    """Nobody in it is running or ready to run; of several threads only the first is seen, so never with those. Its CPU
    time says less: the kernel tells it in steps of 10 ms."""
    groups: frozenset[int]
    """Its process groups."""


class Processes:
    """Every process of the lane at one moment.

    Read from one list of all, not by way of their threads: what was ever looked up below /proc/PID/task makes the
    kernel search when each of the threads ends, and a thread bomb would take the lane's core with it.
    """

    def __init__(self) -> None:
        found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
        self._by_pid = {process.pid: process for process in found if process is not None}
        self._children: dict[int, list[Process]] = {}
        for process in self._by_pid.values():
            self._children.setdefault(process.parent, []).append(process)

    def sample(self, shim_pid: int, pid: int | None, shared_bytes: int, limit_bytes: int) -> Sample:
        """The program `pid`, its descendants, and those that the shim inherited.

        Args:
            shim_pid: PID 1 of the pod.
            pid: Its program, if that lives.
            shared_bytes: Private memory of the zygote, which each forked process shows as its own.
            limit_bytes: Only memory that seems to be above it is measured with care.
        """
        members = self._members(shim_pid, pid)
        memory_bytes = sum(max(0, process.resident_bytes - shared_bytes) for process in members)
        if memory_bytes > limit_bytes:
            memory_bytes = _exact_bytes(members)
        return Sample(
            memory_bytes=memory_bytes,
            cpu_seconds=sum(process.cpu_seconds for process in members),
            pids=tuple(process.pid for process in members),
            num_threads=sum(process.num_threads for process in members),
            is_asleep=all(process.is_asleep and process.num_threads == 1 for process in members),
            groups=frozenset(process.group for process in members) - {0, _OWN_GROUP},
        )

    def _members(self, shim_pid: int, pid: int | None) -> list[Process]:
        waiting = list(self._children.get(shim_pid, ()))
        if pid in self._by_pid:
            waiting.append(self._by_pid[pid])
        found: dict[int, Process] = {}
        while waiting:
            process = waiting.pop()
            if process.pid not in found:
                found[process.pid] = process
                waiting += self._children.get(process.pid, ())
        return list(found.values())


def cpu_seconds_of(pids: tuple[int, ...]) -> float:
    """Together, of those that live."""
    return sum(process.cpu_seconds for pid in pids if (process := read_process(pid)) is not None)


def are_asleep(pids: tuple[int, ...]) -> bool:
    """Whether all their threads sleep. Not for many threads, nor often: see Processes."""
    return all(state in _ASLEEP for pid in pids for state in _thread_states(pid))


def _thread_states(pid: int) -> list[bytes]:
    try:
        return [_fields(f"/proc/{pid}/task/{thread}/stat")[0] for thread in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def num_children(pid: int) -> int:
    """Of its main thread."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return len(file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return 0


_OWN_GROUP = os.getpgrp()


def read_process(pid: int) -> Process | None:
    """None if it has ended."""
    try:
        fields = _fields(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        is_asleep=fields[0] in _ASLEEP,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        num_threads=int(fields[17]),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
    )


def _fields(path: str) -> list[bytes]:
    """Of a line as in /proc/PID/stat, from the state on."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1024).rpartition(b") ")[2].split()
    finally:
        os.close(fd)


def _exact_bytes(members: list[Process]) -> int:
    """Memory of each that is no file's, pages that several share counted once in all."""
    return sum(_proportional_bytes(process.pid) for process in members)


def _proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            fields = [line.split() for line in file]
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended
    return sum(1024 * int(field[1]) for field in fields if field[0] in (b"Pss_Anon:", b"Pss_Shmem:"))


def private_bytes(pid: int) -> int:
    """Memory of one process that it shares with no file."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def is_exiting(pid: int) -> bool:
    """Whether a process that is not reaped yet is on its way out."""
    try:
        return bool(int(_fields(f"/proc/{pid}/stat")[6]) & _PF_EXITING)
    except (FileNotFoundError, ProcessLookupError):
        return True


def open_schedstat(pid: int) -> int | None:
    """What the kernel counts of a process's main thread, for starved_seconds; None if it has ended."""
    try:
        return os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None


def starved_seconds(schedstat: int) -> float:
    """Time that it was ready to run and had no core."""
    try:
        return int(os.pread(schedstat, 100, 0).split()[1]) / 1e9
    except ProcessLookupError:
        return 0.0  # it has just ended


def signal_groups(groups: frozenset[int], number: int) -> None:
    """The processes of a group get it all at once: a fork bomb does not outrun it."""
    for group in groups:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            continue  # it has just ended


def lower_priority(groups: frozenset[int]) -> None:
    """Let programs that have just come go first: those that computed for long run when they leave a core free."""
    for group in groups:
        try:
            os.setpriority(os.PRIO_PGRP, group, _LOW_PRIORITY)
        except ProcessLookupError:
            continue
