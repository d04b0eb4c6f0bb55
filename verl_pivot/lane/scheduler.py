"""Programs that came -> programs that run: when a lane starts each, and what it takes back.

A core is for those that have just come: a few run in the foreground until they sleep or have used their share of CPU
time; then they go on in the background with low priority, and others start. So a lane holds as many sleeping programs
as its memory allows, and one that computes for long delays nobody.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from verl_pivot.lane.background import Background
from verl_pivot.lane.loop import Loop
from verl_pivot.lane.runs import Run
from verl_pivot.lane.spares import Spares
from verl_pivot.lane.watchdog import Processes, Sample, lower_priority, num_children, read_process
from verl_pivot.lane.zygotes import Zygote

_FOREGROUND_CPU_SECONDS = 0.03
_FEW_CHILDREN = 3
_NUM_UNSEEN = 64
"""Programs at once where nobody can look at them, for want of /proc."""
_CROWD = 12
"""More threads than that, of all processes of a pod, are one."""
_WATCH_SECONDS = 0.02
_LOOK_SECONDS = 0.005
_THREADS_SECONDS = 0.05
"""Of several threads only the first is seen: whether they sleep is found out in the background, from then on."""
_ROOM_BYTES = 16 * 1024**2
"""And an eighth of the limit: one process alone meets its rlimit, and always gets a MemoryError."""
_WATCH_COST = 10
"""Watching takes at most a tenth of the lane's time."""
_FULL_SHARE = 0.8
"""Of the lane's memory: above it, nothing new is started."""


class Watched(Protocol):
    """What uses memory: a run, or the sessions of a pod."""

    @property
    def shim_pid(self) -> int: ...

    @property
    def pid(self) -> int | None: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def shared_bytes(self) -> int: ...

    def kill(self, reason: str) -> None: ...


class Scheduler:
    """Runs wait in order of arrival; see the module's docstring."""

    def __init__(self, loop: Loop, spares: Spares, zygotes: dict[str, Zygote], settings: dict[str, Any]) -> None:
        self._loop = loop
        self._spares = spares
        self._zygotes = zygotes
        self._has_proc = bool(settings["has_proc"])
        self._num_foreground = int(settings["num_foreground"]) if self._has_proc else _NUM_UNSEEN
        self._memory_bytes = int(settings["memory_bytes"])
        self._waiting: deque[Run] = deque()
        self._running: dict[int, Run] = {}
        self._foreground: dict[int, Run] = {}
        self._background = Background(loop)
        self._is_looking = False
        self._is_watching = False
        self._used_bytes = 0
        self._restarts: deque[Run] = deque()
        self._reserved: dict[int, int] = {}
        """Bytes set aside for the runs that were restarted."""
        self.watched_sessions: Callable[[], Sequence[Watched]] = tuple

    def add(self, run: Run) -> None:
        self._waiting.append(run)
        self.pump()

    def cancel(self, run_id: int) -> None:
        """End a run that nobody waits for any more; it is answered as cancelled."""
        run = self._running.get(run_id)
        if run is not None:
            run.cancel()
            return
        for queue in (self._waiting, self._restarts):
            for waiting in tuple(queue):
                if waiting.id == run_id:
                    queue.remove(waiting)
                    waiting.refuse("cancelled")

    def pump(self) -> None:
        """Start what can be started now."""
        while self._restarts and sum(self._reserved.values()) + self._share_of(self._restarts[0]) <= self._memory_bytes:
            if not self._start(self._restarts):
                return
        while self._waiting and self._has_room():
            if not self._start(self._waiting):
                return

    def ended(self, run: Run, *, is_evicted: bool) -> bool:
        """Forget a run that has ended; True if it will be started once more."""
        self._running.pop(run.id, None)
        self._leave_foreground(run)
        self._background.remove(run)
        self._reserved.pop(run.id, None)
        if is_evicted:
            run.is_restarted = True
            self._restarts.append(run)
        return is_evicted

    def _share_of(self, run: Run) -> int:
        """What is set aside for it: its limit, or all there is."""
        return min(run.memory_bytes, self._memory_bytes)

    def _has_room(self) -> bool:
        if self._used_bytes > self._memory_bytes * _FULL_SHARE:
            return False
        return len(self._foreground) < self._num_foreground

    def _start(self, queue: deque[Run]) -> bool:
        """Start the first of `queue`, unless its zygote is not ready yet."""
        run = queue[0]
        zygote = self._zygotes[run.zygote]
        if not zygote.is_ready:
            return False
        queue.popleft()
        try:
            process = self._spares.take(zygote, run.shape)
        except OSError as error:
            run.refuse(f"no process can be made: {error}")
            return True
        self._running[run.id] = run
        self._foreground[run.id] = run
        self._background.stand_back(is_foreground_empty=False)
        if run.is_restarted:
            self._reserved[run.id] = self._share_of(run)
        run.start(self._loop, process, has_proc=self._has_proc)
        self._spares.prepare(zygote, run.shape)
        self.watch()
        if not self._is_looking and self._has_proc:
            self._is_looking = True
            self._loop.after(_LOOK_SECONDS, self._look)
        return True

    def watch(self) -> None:
        """Look at every pod again and again, from now until none runs."""
        if not self._is_watching and self._has_proc:
            self._is_watching = True
            self._loop.after(_WATCH_SECONDS, self._watch)

    def _look(self) -> None:
        """Every few milliseconds: who in the foreground sleeps, has had its share, or becomes many, makes room."""
        for run in tuple(self._foreground.values()):
            if run.pid is not None and run.is_older(_LOOK_SECONDS):
                self._look_at(run, run.pid)
        self.pump()
        self._is_looking = bool(self._foreground)
        if self._is_looking:
            self._loop.after(_LOOK_SECONDS, self._look)

    def _leave_foreground(self, run: Run) -> None:
        self._foreground.pop(run.id, None)
        self._background.stand_back(is_foreground_empty=not self._foreground)

    def _look_at(self, run: Run, pid: int) -> None:
        process = read_process(pid)
        if process is None:
            self._leave_foreground(run)
            return
        num_forked = num_children(pid) if process.num_threads == 1 else 0
        is_growing = num_forked > _FEW_CHILDREN or process.num_threads > _CROWD
        is_hidden = process.num_threads > 1 and run.is_older(_THREADS_SECONDS)
        if process.cpu_seconds > _FOREGROUND_CPU_SECONDS or is_growing or is_hidden:
            self._leave_foreground(run)
            run.cpu_seconds = process.cpu_seconds
            run.is_crowd = is_growing
            run.groups, run.pids, run.has_threads = frozenset({process.group}), (pid,), process.num_threads > 1
            self._background.add(run)
        elif process.is_asleep and not num_forked and process.num_threads == 1:
            self._leave_foreground(run)

    def _watch(self) -> None:
        """Memory of every pod against its limit and the lane's; CPU time against a share of the foreground."""
        begin = time.thread_time()
        now = Processes()
        used = [(self._examine_run(run, now), run) for run in tuple(self._running.values()) if run.pid is not None]
        sessions = [(self._examine_session(session, now), session) for session in self.watched_sessions()]
        self._used_bytes = sum(size for size, _ in (*used, *sessions))
        if self._used_bytes > self._memory_bytes:
            self._evict_largest([*((size, run) for size, run in used if not run.is_restarted), *sessions])
        self._is_watching = bool(self._running) or bool(self.watched_sessions())
        if self._is_watching:
            self._loop.after(max(_WATCH_SECONDS, _WATCH_COST * (time.thread_time() - begin)), self._watch)

    def _examine_run(self, run: Run, now: Processes) -> int:
        """Its memory. Those that compute go to the background, and come back when they sleep."""
        if self._background.is_stopped(run):
            return run.used_bytes
        sample = _sample(run, now)
        computed = sample.cpu_seconds - run.cpu_seconds
        run.cpu_seconds, run.used_bytes = sample.cpu_seconds, sample.memory_bytes
        run.groups, run.pids, run.has_threads = sample.groups, sample.pids, sample.num_threads > len(sample.pids)
        if sample.num_threads > _CROWD and run.job is not None:
            run.is_crowd = run.job.is_crowd = True
        if computed > _FOREGROUND_CPU_SECONDS or run.is_crowd:
            self._leave_foreground(run)
            self._background.add(run)
        elif sample.is_asleep and computed == 0.0:
            self._background.remove(run)
        return sample.memory_bytes

    def _examine_session(self, session: Watched, now: Processes) -> int:
        sample = _sample(session, now)
        if sample.cpu_seconds > _FOREGROUND_CPU_SECONDS:
            lower_priority(sample.groups)
        return sample.memory_bytes

    def _evict_largest(self, used: list[tuple[int, Watched]]) -> None:
        if used:
            max(used, key=lambda pair: pair[0])[1].kill("evicted")


def _sample(each: Watched, now: Processes) -> Sample:
    """What it uses; it is killed if that is more than its limit, with some room for the kernel to say so first."""
    limit = each.memory_bytes + each.memory_bytes // 8 + _ROOM_BYTES
    sample = now.sample(each.shim_pid, each.pid, each.shared_bytes, limit)
    if sample.memory_bytes > limit:
        each.kill("memory_limit")
    return sample
