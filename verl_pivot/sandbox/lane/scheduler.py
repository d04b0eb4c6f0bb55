"""The scheduler of a lane: when a waiting program starts, when it leaves the foreground, and when it is evicted.

New programs come first: a few run in the foreground, until they sleep or have used their share of CPU time. Then they
go on in the background with low priority, and others start. A lane therefore holds as many sleeping programs as its
memory allows, and a program that computes for long delays no other.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from verl_pivot.sandbox.lane.background import Background
from verl_pivot.sandbox.lane.core_time import MANY_PROCESSES, look_at, note_crowd
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.procfs import ProcessSnapshot, UsageSample, lower_priority, num_children, read_process
from verl_pivot.sandbox.lane.runs import Run
from verl_pivot.sandbox.lane.spares import Spares
from verl_pivot.sandbox.lane.zygote_handle import ZygoteHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import LaneSettings

_FOREGROUND_CPU_SECONDS = 0.03
"""CPU time that a program may use in the foreground."""
_FEW_CHILDREN = 3
"""Child processes above which a program leaves the foreground as a crowd."""
_NUM_UNWATCHED = 64
"""Number of programs that run at once on a machine without /proc, where they cannot be watched."""
_CROWD = 12
"""Number of threads of all processes of a pod above which it is a crowd. The watch looks at no single thread of a
crowd, see procfs.ProcessSnapshot."""
_WATCH_SECONDS = 0.02
"""Time between two samples of every pod."""
_CHECK_SECONDS = 0.005
"""Time between two checks of the foreground."""
_THREADS_SECONDS = 0.05
"""Age in seconds at which a program of several threads leaves the foreground. Only its first thread is seen there; the
background finds out whether all threads sleep."""
_ROOM_BYTES = 16 * 1024**2
"""Bytes that a pod may use above its limit, in addition to an eighth of the limit, before it is killed. A single
process meets its rlimit first, and so always gets a MemoryError."""
_WATCH_COST = 10
"""The lane waits this many times as long as a sample took before it takes the next one."""
_FULL_SHARE = 0.8
"""Share of the lane's memory above which no program is started."""


class Watched(Protocol):
    """Something with a memory limit: a run, or the sessions of a pod."""

    @property
    def shim_pid(self) -> int: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def buffer_bytes(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def shared_bytes(self) -> int: ...

    def kill(self, reason: str) -> None: ...


class Scheduler:
    """Starts, watches and evicts runs, which wait in order of arrival; see the module's docstring."""

    def __init__(
        self, loop: EventLoop, spares: Spares, zygotes: dict[str, ZygoteHandle], settings: "LaneSettings"
    ) -> None:
        self._loop = loop
        self._spares = spares
        self._zygotes = zygotes
        self._has_proc = settings["has_proc"]
        self._num_foreground = settings["num_foreground"] if self._has_proc else _NUM_UNWATCHED
        self._memory_bytes = settings["memory_bytes"]
        self._waiting: deque[Run] = deque()
        self._running: dict[int, Run] = {}
        self._foreground: dict[int, Run] = {}
        self._background = Background(loop)
        self._is_checking = False
        self._is_watching = False
        self._used_bytes = 0
        self._restarts: deque[Run] = deque()
        self._reserved: dict[int, int] = {}
        """Number of each restarted run -> bytes set aside for it."""
        self.watched_sessions: Callable[[], Sequence[Watched]] = tuple
        """Function that returns the pods of sessions, whose memory is watched too."""

    def add(self, run: Run) -> None:
        self._waiting.append(run)
        self.pump()

    def cancel(self, number: int) -> None:
        """End the run with this number, as its answer is no longer wanted."""
        run = self._running.get(number)
        if run is not None:
            run.cancel()
            return
        for queue in (self._waiting, self._restarts):
            for waiting in tuple(queue):
                if waiting.number == number:
                    queue.remove(waiting)
                    waiting.fail("cancelled")

    def type_in(self, number: int, data: bytes) -> None:
        """Type into the terminal of the run with this number; ignored once it has ended."""
        for run in (*self._running.values(), *self._waiting, *self._restarts):
            if run.number == number:
                run.type_in(data)

    def pump(self) -> None:
        """Start what can be started now."""
        while self._restarts and sum(self._reserved.values()) + self._share_of(self._restarts[0]) <= self._memory_bytes:
            if not self._start(self._restarts):
                return
        while self._waiting and self._has_room():
            if not self._start(self._waiting):
                return

    def forget(self, run: Run) -> None:
        """Give up the place of a run that has ended."""
        self._running.pop(run.number, None)
        self._leave_foreground(run)
        self._background.remove(run)
        self._reserved.pop(run.number, None)

    def restart(self, run: Run) -> None:
        """Start an evicted run once more, when its whole memory limit can be set aside."""
        run.is_restarted = True
        self._restarts.append(run)

    def _share_of(self, run: Run) -> int:
        """Bytes to set aside for a restarted run: its limit, or the whole memory of the lane if that is less."""
        return min(run.memory_bytes, self._memory_bytes)

    def _has_room(self) -> bool:
        if self._used_bytes > self._memory_bytes * _FULL_SHARE:
            return False
        return len(self._foreground) < self._num_foreground

    def _start(self, queue: deque[Run]) -> bool:
        """Start the first run of `queue`; False if its zygote is not ready yet."""
        run = queue[0]
        zygote = self._zygotes[run.zygote]
        if not zygote.is_ready:
            return False
        queue.popleft()
        try:
            process = self._spares.take(zygote, run.shape)
        except OSError as error:
            run.fail(f"cannot create a process: {error}")
            return True
        self._running[run.number] = run
        self._foreground[run.number] = run
        self._background.note_foreground(is_empty=False)
        if run.is_restarted:
            self._reserved[run.number] = self._share_of(run)
        run.start(self._loop, process, has_proc=self._has_proc)
        self._spares.prepare(zygote, run.shape)
        self.watch()
        if not self._is_checking and self._has_proc:
            self._is_checking = True
            self._loop.after(_CHECK_SECONDS, self._check_foreground)
        return True

    def watch(self) -> None:
        """Sample every pod at intervals, from now until none is left."""
        if not self._is_watching and self._has_proc:
            self._is_watching = True
            self._loop.after(_WATCH_SECONDS, self._watch)

    def _check_foreground(self) -> None:
        """Let runs that sleep, have used their share of CPU time, or become a crowd leave the foreground."""
        for run in tuple(self._foreground.values()):
            if run.pid is not None and run.is_older(_CHECK_SECONDS):
                self._check_run(run, run.pid)
        self.pump()
        self._is_checking = bool(self._foreground)
        if self._is_checking:
            self._loop.after(_CHECK_SECONDS, self._check_foreground)

    def _leave_foreground(self, run: Run) -> None:
        self._foreground.pop(run.number, None)
        self._background.note_foreground(is_empty=not self._foreground)

    def _check_run(self, run: Run, pid: int) -> None:
        process = read_process(pid)
        if process is None:
            self._leave_foreground(run)
            return
        num_forked = num_children(pid) if process.num_threads == 1 else 0
        is_crowd = num_forked > _FEW_CHILDREN or process.num_threads > _CROWD
        is_hidden = process.num_threads > 1 and run.is_older(_THREADS_SECONDS)
        if process.cpu_seconds > _FOREGROUND_CPU_SECONDS or is_crowd or is_hidden:
            self._leave_foreground(run)
            run.cpu_seconds = process.cpu_seconds
            run.is_crowd = is_crowd
            run.groups, run.pids, run.has_threads = frozenset({process.group}), (pid,), process.num_threads > 1
            self._background.add(run)
        elif process.is_asleep and not num_forked and process.num_threads == 1:
            self._leave_foreground(run)

    def _watch(self) -> None:
        """Compare the memory of every pod with its limit and the lane's, and its CPU time with the foreground share."""
        begin = time.thread_time()
        snapshot = ProcessSnapshot()
        used = [(self._examine_run(run, snapshot), run) for run in tuple(self._running.values()) if run.pid is not None]
        sessions = [(self._examine_session(session, snapshot), session) for session in self.watched_sessions()]
        self._used_bytes = sum(size for size, _ in (*used, *sessions))
        if self._used_bytes > self._memory_bytes:
            self._evict_largest([*((size, run) for size, run in used if not run.is_restarted), *sessions])
        self._is_watching = bool(self._running) or bool(self.watched_sessions())
        if self._is_watching:
            self._loop.after(max(_WATCH_SECONDS, _WATCH_COST * (time.thread_time() - begin)), self._watch)

    def _examine_run(self, run: Run, snapshot: ProcessSnapshot) -> int:
        """Memory of a run in bytes. A run that computes goes to the background, and leaves it when it sleeps."""
        sample = _sample(run, snapshot)
        if self._background.is_stopped(run):
            run.used_bytes = sample.memory_bytes
            self._background.stop_again(run, sample)
            return run.used_bytes
        self._background.continue_again(run, sample)
        computed = sample.cpu_seconds - run.cpu_seconds
        run.cpu_seconds, run.used_bytes = sample.cpu_seconds, sample.memory_bytes
        run.groups, run.pids, run.has_threads = sample.groups, sample.pids, sample.num_threads > len(sample.pids)
        if sample.num_threads > _CROWD and run.task is not None:
            run.is_crowd = True
            run.task.has_many_processes |= len(sample.pids) > MANY_PROCESSES
            note_crowd(run.task.waiting, snapshot.processes(sample.pids))
        elif len(sample.pids) > 1 and run.task is not None:  # the times of ended processes are lost
            look_at(run.task.waiting, snapshot.processes(sample.pids), time.monotonic())
        if computed > _FOREGROUND_CPU_SECONDS or run.is_crowd:
            self._leave_foreground(run)
            self._background.add(run)
        elif sample.is_asleep and computed == 0.0:
            self._background.remove(run)
        return sample.memory_bytes

    def _examine_session(self, session: Watched, snapshot: ProcessSnapshot) -> int:
        sample = _sample(session, snapshot)
        if sample.cpu_seconds > _FOREGROUND_CPU_SECONDS:
            lower_priority(sample.groups)
        return sample.memory_bytes

    def _evict_largest(self, used: list[tuple[int, Watched]]) -> None:
        if used:
            max(used, key=lambda pair: pair[0])[1].kill("evicted")


def _sample(pod: Watched, snapshot: ProcessSnapshot) -> UsageSample:
    """Usage of a pod. The pod is killed if its memory is above its limit plus some room, see _ROOM_BYTES."""
    limit = pod.memory_bytes + pod.memory_bytes // 8 + _ROOM_BYTES
    sample = snapshot.sample(pod.shim_pid, pod.pid, pod.shared_bytes, limit)
    if (buffer_bytes := pod.buffer_bytes) > 0:
        sample = replace(sample, memory_bytes=sample.memory_bytes + buffer_bytes)
    if sample.memory_bytes > limit:
        pod.kill("memory_limit")
    return sample
