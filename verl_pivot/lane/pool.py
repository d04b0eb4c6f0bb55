"""Shapes -> pods that are ready when a program comes, and the end of those that were used."""

import os
import signal
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from verl_pivot.lane.helpers import Helper
from verl_pivot.lane.loop import Loop
from verl_pivot.lane.shapes import PodShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A shim that waits."""

    shape: PodShape
    pid: int
    pidfd: int


class PodPool:
    """Keeps `num_spare` pods of the common shape; others are started when they are asked for."""

    def __init__(self, loop: Loop, common: PodShape, num_spare: int, on_ready: Callable[[], None]) -> None:
        self._common = common
        self._num_spare = num_spare
        self._on_ready = on_ready
        self._ready: dict[PodShape, deque[Pod]] = {}
        self._asked: deque[tuple[PodShape, int]] = deque()
        self.last_error = ""
        """Why the last pod that failed could not start; empty since one started."""
        self._spawner = Helper(loop, "spawner", (), on_message=self._started, on_end=self._spawner_ended)

    def take(self, shape: PodShape) -> Pod | None:
        """A pod for one use, or None: `on_ready` is called when there is one."""
        ready = self._ready.get(shape)
        if ready:
            return ready.popleft()
        if all(asked != shape for asked, _ in self._asked):
            self._start(shape, 1)
        return None

    def refill(self) -> None:
        """Start spare pods, in one go, when half of them are gone."""
        starting = sum(number for shape, number in self._asked if shape == self._common)
        missing = self._num_spare - len(self._ready.get(self._common, ())) - starting
        if missing * 2 >= self._num_spare:
            self._start(self._common, missing)

    def is_alive(self, pod: Pod) -> bool:
        """Whether its shim still runs: if not, whatever happened in the pod was not the program's doing."""
        return _signal(pod, 0)

    def end(self, pod: Pod) -> None:
        """Kill whatever is left in it. Once per pod."""
        _signal(pod, signal.SIGKILL)
        os.close(pod.pidfd)

    def _start(self, shape: PodShape, number: int) -> None:
        self._asked.append((shape, number))
        self._spawner.ask((number, *shape))

    def _started(self, message: tuple[str, tuple[int, ...]], pidfds: tuple[int, ...]) -> None:
        self._spawner.answered()
        shape, _ = self._asked.popleft()
        self.last_error, pids = message
        pods = [Pod(shape=shape, pid=pid, pidfd=pidfd) for pid, pidfd in zip(pids, pidfds, strict=True)]
        self._ready.setdefault(shape, deque()).extend(pods)
        self._on_ready()

    def _spawner_ended(self) -> None:
        self._asked.clear()
        self._on_ready()


def _signal(pod: Pod, number: int) -> bool:
    try:
        signal.pidfd_send_signal(pod.pidfd, number)
    except ProcessLookupError:
        return False
    return True
