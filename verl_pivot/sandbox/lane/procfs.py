"""/proc -> memory, CPU time and process groups of a pod, which no rlimit bounds."""

import os
import select
import time
from dataclasses import dataclass
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_PF_EXITING = 0x4
_LOW_PRIORITY = 19
_OOM_SCORE = 500
_MANY_MAPPED_BYTES = 8 * 1024**3
"""Bytes of address space above which the page tables of a process count too: they take at most 1/512 of it."""
_SHARED_COPIES = 2
"""Number of interpreters whose shared memory counts for nothing without a look at what they share: a process that
executes another program shares none."""
_STOPPED = frozenset((b"T", b"Z", b"X"))
_ASLEEP = frozenset((b"S", b"D", b"T", b"Z", b"X"))


class ProcessStat(NamedTuple):
    """One line of /proc/PID/stat."""

    pid: int
    parent: int
    group: int
    is_asleep: bool
    is_stopped: bool
    """Whether a signal has stopped it, or it has ended."""
    cpu_seconds: float
    num_threads: int
    resident_bytes: int
    mapped_bytes: int
    """Size of its address space."""
    started_at: float
    """Seconds since the machine's start, rounded down to a tick of its clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSample:
    """Usage of one pod at one moment."""

    memory_bytes: int
    """Memory beyond what a fresh interpreter shares with its zygote."""
    cpu_seconds: float
    pids: tuple[int, ...]
    num_threads: int
    """Threads of all its processes together."""
    is_asleep: bool
    """Whether every process has one thread, which is neither running nor ready to run. False if a process has several
    threads, as only the state of the first is read. CPU time would show less: the kernel gives it in steps of 10 ms."""
    is_stopped: bool
    """Whether a signal has stopped every process."""
    has_stopped: bool
    """Whether a signal has stopped one process at least, or one has ended."""
    groups: frozenset[int]
    """Process groups."""


class ProcessSnapshot:
    """Every process of the lane at one moment.

    Read from the list of processes, never from /proc/PID/task. Once something was looked up there, the kernel searches
    for it whenever a thread ends, and a thread bomb would use up the lane's core that way.
    """

    def __init__(self) -> None:
        found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
        self._by_pid = {process.pid: process for process in found if process is not None}
        self._children: dict[int, list[ProcessStat]] = {}
        for process in self._by_pid.values():
            self._children.setdefault(process.parent, []).append(process)

    def sample(self, shim_pid: int, pid: int | None, shared_bytes: int, limit_bytes: int) -> UsageSample:
        """Usage of a pod: its program, the program's descendants, and orphans, whose parent becomes the shim.

        Args:
            shim_pid: The pod's PID 1.
            pid: The program, if it lives.
            shared_bytes: Private memory of the zygote, which each forked process shows as its own.
            limit_bytes: Memory above which the exact figure is read, which takes longer.
        """
        members = self._members(shim_pid, pid)
        memory_bytes = sum(max(0, process.resident_bytes - shared_bytes) for process in members)
        all_bytes = sum(process.resident_bytes for process in members) - _SHARED_COPIES * shared_bytes
        if max(memory_bytes, all_bytes) > limit_bytes:
            memory_bytes = _exact_bytes(members)
        memory_bytes += sum(_page_table_bytes(process.pid) for process in members if _may_have_many_tables(process))
        return UsageSample(
            memory_bytes=memory_bytes,
            cpu_seconds=sum(process.cpu_seconds for process in members),
            pids=tuple(process.pid for process in members),
            num_threads=sum(process.num_threads for process in members),
            is_asleep=all(process.is_asleep and process.num_threads == 1 for process in members),
            is_stopped=all(process.is_stopped for process in members),
            has_stopped=any(process.is_stopped for process in members),
            groups=frozenset(process.group for process in members) - {0, _OWN_GROUP},
        )

    def processes(self, pids: tuple[int, ...]) -> list[ProcessStat]:
        """Processes among `pids` that were alive."""
        return [self._by_pid[pid] for pid in pids if pid in self._by_pid]

    def _members(self, shim_pid: int, pid: int | None) -> list[ProcessStat]:
        waiting = list(self._children.get(shim_pid, ()))
        if pid in self._by_pid:
            waiting.append(self._by_pid[pid])
        found: dict[int, ProcessStat] = {}
        while waiting:
            process = waiting.pop()
            if process.pid not in found:
                found[process.pid] = process
                waiting += self._children.get(process.pid, ())
        return list(found.values())


def cpu_seconds_of(pids: tuple[int, ...]) -> float:
    """CPU time of these processes together; those that have ended count 0."""
    return sum(process.cpu_seconds for pid in pids if (process := read_process(pid)) is not None)


def are_asleep(pids: tuple[int, ...]) -> bool:
    """Whether all threads of these processes sleep. To be called seldom, and for few threads: see ProcessSnapshot."""
    return all(state in _ASLEEP for pid in pids for state in _thread_states(pid))


def _thread_states(pid: int) -> list[bytes]:
    try:
        return [_fields(f"/proc/{pid}/task/{thread}/stat")[0] for thread in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def num_children(pid: int) -> int:
    """Number of child processes that the main thread of `pid` has; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return len(file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return 0


_OWN_GROUP = os.getpgrp()


def read_process(pid: int) -> ProcessStat | None:
    """One process; None if it has ended."""
    try:
        fields = _fields(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessStat(
        pid=pid,
        parent=int(fields[1]),
        group=int(fields[2]),
        is_asleep=fields[0] in _ASLEEP,
        is_stopped=fields[0] in _STOPPED,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        num_threads=int(fields[17]),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        mapped_bytes=int(fields[20]),
        started_at=int(fields[19]) / _TICKS,
    )


def _fields(path: str) -> list[bytes]:
    """Fields of a file like /proc/PID/stat, from the state on: the third field of proc(5) is the first here."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 1024).rpartition(b") ")[2].split()
    finally:
        os.close(fd)


def _exact_bytes(members: list[ProcessStat]) -> int:
    """Memory of these processes that belongs to no file; a page that several share counts once."""
    return sum(_proportional_bytes(process.pid) for process in members)


def _proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            fields = [line.split() for line in file]
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended
    return sum(1024 * int(field[1]) for field in fields if field[0] in (b"Pss_Anon:", b"Pss_Shmem:"))


def _may_have_many_tables(process: ProcessStat) -> bool:
    return process.mapped_bytes > _MANY_MAPPED_BYTES


def _page_table_bytes(pid: int) -> int:
    """Memory that the kernel uses to map the memory of a process: no limit on resident memory counts it."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return sum(1024 * int(line.split()[1]) for line in file if line.startswith(b"VmPTE:"))
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has just ended


def private_bytes(pid: int) -> int:
    """Memory of one process that belongs to no file."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def is_exiting(pid: int) -> bool:
    """Whether a process is about to end, or has ended."""
    try:
        return bool(int(_fields(f"/proc/{pid}/stat")[6]) & _PF_EXITING)
    except (FileNotFoundError, ProcessLookupError):
        return True


def open_schedstat(pid: int) -> int | None:
    """Descriptor of the scheduler's statistics of a process's main thread; None if it has ended."""
    try:
        return os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None


def starved_seconds(schedstat: int) -> float:
    """Time that a main thread was ready to run and had no core, from a descriptor of open_schedstat."""
    try:
        return int(os.pread(schedstat, 100, 0).split()[1]) / 1e9
    except ProcessLookupError:
        return 0.0  # it has just ended


def raise_oom_score() -> None:
    """Let the kernel end this process and its children before the trainer when the machine runs out of memory.

    If this process has CAP_SYS_RESOURCE, its children cannot go below the score that it sets.
    """
    with open("/proc/self/oom_score_adj", "r+b", buffering=0) as file:
        if int(file.read()) < _OOM_SCORE:  # a container may have set a higher score, which cannot be lowered
            file.write(b"%d" % _OOM_SCORE)


def has_ended(pid: int) -> bool:
    """Whether a process has ended with all its threads; needs no /proc."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(fd)


class MemoryKills:
    """Processes that the kernel killed because memory ran out, counted for the whole machine."""

    def __init__(self, path: str = "/proc/vmstat") -> None:
        """Count the kills until now; without the file at `path`, no kill is ever noticed."""
        self._path = path
        self._num_kills = self._counted()
        self._noticed_at = 0.0

    def noticed_since(self, since: float) -> bool:
        """Whether a kill was first noticed after `since`, a time on the monotonic clock."""
        num_kills = self._counted()
        if num_kills != self._num_kills:
            self._num_kills, self._noticed_at = num_kills, time.monotonic()
        return self._noticed_at > since

    def _counted(self) -> int:
        try:
            with open(self._path, "rb") as file:
                return sum(int(line.split()[1]) for line in file if line.startswith(b"oom_kill "))
        except FileNotFoundError:
            return 0


def signal_groups(groups: frozenset[int], number: int) -> None:
    """Send a signal to process groups; all processes of a group get it at once, so that no fork bomb outruns it."""
    for group in groups:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            continue  # it has just ended


def lower_priority(groups: frozenset[int]) -> None:
    """Give process groups the lowest priority: they run when newer programs leave a core free."""
    for group in groups:
        try:
            os.setpriority(os.PRIO_PGRP, group, _LOW_PRIORITY)
        except ProcessLookupError:
            continue
