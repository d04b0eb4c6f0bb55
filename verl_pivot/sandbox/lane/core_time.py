"""Time that processes had a core, and time that they were ready to run without one, which wall limits do not count."""

import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from verl_pivot.sandbox.lane.procfs import ProcessStat, are_asleep, read_process

_MAX_WAITS = 5.0
_MAX_WAITED_SECONDS = 30.0
"""Time spent waiting for a core is granted on top of a wall limit: up to _MAX_WAITS times that limit, or up to
_MAX_WAITED_SECONDS, whichever is more. Clients give up later than both, see deadlines.deadline_for."""
MANY_PROCESSES = 12
"""Number of processes of a program above which no time is granted. They wait for each other, and the times of a process
that starts and ends between two looks are not known. A thread that ends leaves its CPU time to its process."""
LOOK_AGAIN_SECONDS = 0.05
"""Seconds between two looks that tell whether a process which is ready to run has a core."""
_MAX_THREADS = 256
"""Number of threads above which only the first thread of a process is looked at."""
_MAX_PROCESSES = 64
"""Maximum number of processes of one family that are looked at."""
_CPU_CLOCK = 2
"""Part of a clock id that stands beside the process id: it means the CPU time of all threads of the process."""


class CoreTime(NamedTuple):
    """Time on a core, and time spent ready to run without one."""

    used_seconds: float
    waited_seconds: float


_NO_TIME = CoreTime(0.0, 0.0)


class Waiting:
    """Time in which the threads of a program, living and ended, were ready to run and had no core.

    The times of all threads are added up, but the sum is at most the elapsed time minus the CPU time of the program.
    So a program gains no time by competing with itself.
    """

    def __init__(self, before: Mapping[int, CoreTime] = MappingProxyType({})) -> None:
        """Begin.

        Args:
            before: {thread id: times that the thread had already, which do not count}; see core_times.
        """
        self._latest = dict(before)
        self._before = self._total = _sum(before.values())
        self._counted_seconds = 0.0
        self._looked_at = self._stalled_since = -math.inf
        self._is_ready = False
        self.is_undecided = False
        """Whether a process was ready to run at the latest look, but the look before was too long ago to tell whether
        the process has a core. The kernel counts a wait only when the wait has ended."""

    def look(self, times: Mapping[int, CoreTime], *, is_ready: bool, now: float) -> None:
        """Record the present times of all threads; the times of a thread that has ended stay as they were.

        Args:
            times: {thread id: times of a living thread}.
            is_ready: Whether one of the processes runs or is ready to run.
            now: Time on the monotonic clock.
        """
        self.note(times)
        total = _sum(self._latest.values())
        if not (is_ready and self._is_ready) or total != self._total:
            self._stalled_since = now
        self.is_undecided = is_ready and now - self._looked_at > LOOK_AGAIN_SECONDS * 2
        self._total, self._is_ready, self._looked_at = total, is_ready, now

    def note(self, times: Mapping[int, CoreTime]) -> None:
        """Record times ahead of the next look, in case a thread ends before it: {thread id: its times}."""
        for thread, latest in times.items():
            self._latest[thread] = CoreTime(*map(max, self._latest.get(thread, _NO_TIME), latest))

    def note_counted(self, used_seconds: float) -> None:
        """Record the CPU seconds of the whole program where something counts them, see control_groups.CpuCounter."""
        self._counted_seconds = max(self._counted_seconds, used_seconds)

    def seconds(self, elapsed_seconds: float) -> float:
        """Seconds, out of `elapsed_seconds`, that the program had waited for a core by the latest look."""
        stalled = self._looked_at - self._stalled_since if self._is_ready else 0.0
        waited = self._total.waited_seconds - self._before.waited_seconds + stalled
        return max(0.0, min(waited, elapsed_seconds - self.used_seconds))

    @property
    def used_seconds(self) -> float:
        """CPU seconds that the program had used by the latest look."""
        return max(self._total.used_seconds - self._before.used_seconds, self._counted_seconds)


def _sum(times: Collection[CoreTime]) -> CoreTime:
    return CoreTime(sum(each.used_seconds for each in times), sum(each.waited_seconds for each in times))


def look_at(waiting: Waiting, processes: Sequence[ProcessStat], now: float) -> None:
    """Record the times of `processes`, which are all living processes of a program."""
    times = core_times(processes)
    waiting.look(times, is_ready=not are_asleep(tuple(process.pid for process in processes)), now=now)


def note_crowd(waiting: Waiting, processes: Sequence[ProcessStat]) -> None:
    """Record the CPU time of processes with many threads. No single thread is looked up, see ProcessSnapshot."""
    waiting.note({process.pid: CoreTime(process.cpu_seconds, 0.0) for process in processes})


def granted_seconds(waited_seconds: float, wall_seconds: float) -> float:
    """Seconds that a program gets on top of its wall limit because it waited for a core."""
    return min(waited_seconds, max(_MAX_WAITS * wall_seconds, _MAX_WAITED_SECONDS))


def lacked_core(waited_seconds: float, used_seconds: float, wall_seconds: float) -> bool:
    """Whether a program that ran into its wall limit did so for lack of a core, which says nothing of the program.

    It waited longer than what is granted, or it waited for half of its limit or more and computed for less than that.
    In the second case the rest of its time is sleep, or waits of processes that started and ended between two looks.

    Args:
        waited_seconds: Time in which it was ready to run and had no core.
        used_seconds: CPU time of its processes.
        wall_seconds: Its wall limit.
    """
    is_beyond = waited_seconds > granted_seconds(waited_seconds, wall_seconds)
    return is_beyond or used_seconds < wall_seconds / 2 <= waited_seconds


def family(pid: int, shim_pid: int | None = None) -> list[ProcessStat]:
    """A process and its descendants.

    Args:
        pid: The process.
        shim_pid: PID 1 of its pod, the parent of daemons whose own parent has ended; None leaves daemons out.
    """
    found: list[ProcessStat] = []
    daemons = [] if shim_pid is None else [each for each in _children(shim_pid, shim_pid) if each != pid]
    waiting = [*daemons, pid]
    while waiting and len(found) < _MAX_PROCESSES:
        process = read_process(waiting.pop())
        if process is not None:
            found.append(process)
            for thread in _threads(process):
                waiting += _children(process.pid, thread)
    return found


def core_times(processes: Collection[ProcessStat]) -> dict[int, CoreTime]:
    """{thread id: times of a living thread}; the first thread of a process has the CPU time of all its threads."""
    times = {}
    for process in processes:
        times[process.pid] = CoreTime(process.cpu_seconds, 0.0)
        for thread in _threads(process):
            used = process.cpu_seconds if thread == process.pid else 0.0
            times[thread] = CoreTime(used, _waited_seconds(process.pid, thread))
    return times


def cpu_seconds_of_process(pid: int) -> float | None:
    """CPU time of a process by its own clock, which needs no /proc; None if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
    except OSError:
        return None


def _threads(process: ProcessStat) -> list[int]:
    if not 1 < process.num_threads <= _MAX_THREADS:
        return [process.pid]
    try:
        return [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _children(pid: int, thread: int) -> list[int]:
    return [int(child) for child in _read(f"/proc/{pid}/task/{thread}/children").split()]


def _waited_seconds(pid: int, thread: int) -> float:
    path = f"/proc/{pid}/schedstat" if thread == pid else f"/proc/{pid}/task/{thread}/schedstat"
    fields = _read(path).split()
    return int(fields[1]) / 1e9 if fields else 0.0


def _read(path: str) -> bytes:
    """Content of a small file of /proc; empty if its process has ended."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return b""
    try:
        return os.read(fd, 4096)
    except ProcessLookupError:
        return b""
    finally:
        os.close(fd)
