"""Time that processes had a core, and time that they were ready to run and had none, which no wall limit counts."""

import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from verl_pivot.sandbox.lane.procfs import ProcessStat, are_asleep, read_process

_MAX_WAITS = 5.0
_MAX_WAITED_SECONDS = 30.0
"""Time spent waiting for a core is granted on top of a wall limit, up to these many times that limit or these many
seconds, whichever is more. Both stay below the time after which clients give up."""
MANY_PROCESSES = 12
"""Processes of a program above which nothing is granted: they wait for each other, and of those that end unseen neither
time is known. Threads leave theirs to their process."""
LOOK_AGAIN_SECONDS = 0.05
"""Seconds between two looks that tell whether a process which is ready to run has a core."""
_MAX_THREADS = 256
"""Threads of a process above which only its first thread is looked at."""
_MAX_PROCESSES = 64
"""Processes of one family that are looked at."""
_CPU_CLOCK = 2
"""Kind of clock, in its id beside the process: its scheduled time, of all its threads."""


class CoreTime(NamedTuple):
    """Time on a core, and time spent ready to run without one."""

    used_seconds: float
    waited_seconds: float


_NO_TIME = CoreTime(0.0, 0.0)


class Waiting:
    """Time in which a program was ready to run and had no core, of all its processes, living and ended.

    Two of its processes that wait at the same time wait once: time in which one of them had a core never counts, so
    that no program gains time by competing with itself.
    """

    def __init__(self, before: Mapping[int, CoreTime] = MappingProxyType({})) -> None:
        """Begin.

        Args:
            before: {process id: times that a process already had}.
        """
        self._latest = dict(before)
        self._before = self._total = _sum(before.values())
        self._looked_at = self._stalled_since = -math.inf
        self._is_ready = False
        self.is_undecided = False
        """Whether a process was ready to run at the latest look, and the look before it was too long ago to tell
        whether it has a core: the kernel adds up a time of waiting when it has ended."""

    def look(self, times: Mapping[int, CoreTime], *, is_ready: bool, now: float) -> None:
        """Take down what is known now; times of a process that has ended stay as they were.

        Args:
            times: {process id: times of a living process}.
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
        """Take down times for the next look, at which a process may have ended: {process id: its times}."""
        for pid, latest in times.items():
            self._latest[pid] = CoreTime(*map(max, self._latest.get(pid, _NO_TIME), latest))

    def seconds(self, elapsed_seconds: float) -> float:
        """Seconds out of `elapsed_seconds` that the program had waited for a core at the latest look."""
        used = self._total.used_seconds - self._before.used_seconds
        stalled = self._looked_at - self._stalled_since if self._is_ready else 0.0
        waited = self._total.waited_seconds - self._before.waited_seconds + stalled
        return max(0.0, min(waited, elapsed_seconds - used))


def _sum(times: Collection[CoreTime]) -> CoreTime:
    return CoreTime(sum(each.used_seconds for each in times), sum(each.waited_seconds for each in times))


def look_at(waiting: Waiting, processes: Sequence[ProcessStat], now: float) -> None:
    """Take down the times of these processes, which are the living ones of a program."""
    times = {process.pid: core_time(process) for process in processes}
    waiting.look(times, is_ready=not are_asleep(tuple(times)), now=now)


def note_crowd(waiting: Waiting, processes: Sequence[ProcessStat]) -> None:
    """Take down the CPU time of these processes, of whose many threads none is looked up; see ProcessSnapshot."""
    waiting.note({process.pid: CoreTime(process.cpu_seconds, 0.0) for process in processes})


def granted_seconds(waited_seconds: float, wall_seconds: float) -> float:
    """Seconds that a program gets on top of its wall limit, for those that it waited for a core."""
    return min(waited_seconds, max(_MAX_WAITS * wall_seconds, _MAX_WAITED_SECONDS))


def family(pid: int, shim_pid: int | None = None) -> list[ProcessStat]:
    """A process and its descendants.

    Args:
        pid: The process.
        shim_pid: PID 1 of its pod, which daemons have as their parent when their own has ended; None leaves them out.
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


def core_time(process: ProcessStat) -> CoreTime:
    """Times of a process; waiting is summed over its living threads."""
    waited = sum(_waited_seconds(process.pid, thread) for thread in _threads(process))
    return CoreTime(process.cpu_seconds, waited)


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
