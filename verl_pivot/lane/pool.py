"""Shapes -> pods that are ready when a program comes, and the end of those that were used."""

import os
import signal
from collections import deque
from collections.abc import Callable

from verl_pivot.lane.loop import Loop
from verl_pivot.lane.pod import READY, Pod, PodShape, start_pod


class PodPool:
    """Keeps `num_spare` pods of the common shape; others are started when they are asked for."""

    def __init__(self, loop: Loop, common: PodShape, num_spare: int, on_ready: Callable[[], None]) -> None:
        self._loop = loop
        self._common = common
        self._num_spare = num_spare
        self._on_ready = on_ready
        self._own_pidfd = os.pidfd_open(os.getpid())
        self._ready: dict[PodShape, deque[Pod]] = {}
        self._starting: dict[PodShape, int] = {}
        self._living: set[int] = set()
        self._dying: set[int] = set()
        self.last_error: str | None = None
        """Why the last pod that failed could not start; None since one started."""

    def take(self, shape: PodShape) -> Pod | None:
        """A pod for one use, or None: `on_ready` is called when there is one."""
        ready = self._ready.get(shape)
        if ready:
            return ready.popleft()
        if not self._starting.get(shape, 0):
            self._start(shape)
        return None

    def refill(self) -> None:
        """Start one spare pod if any is missing; called when nothing is more urgent."""
        ready = len(self._ready.get(self._common, ()))
        if ready + self._starting.get(self._common, 0) < self._num_spare:
            self._start(self._common)

    def is_alive(self, pod: Pod) -> bool:
        """Whether its shim still runs: if not, whatever happened in the pod was not the program's doing."""
        self.reap()
        return pod.pid in self._living

    def end(self, pod: Pod) -> None:
        """Kill whatever is left in it. Once per pod."""
        os.close(pod.pidfd)
        if pod.pid in self._living:
            self._living.discard(pod.pid)
            self._dying.add(pod.pid)
            os.kill(pod.pid, signal.SIGKILL)  # our child, not yet reaped: the number is still its own

    def reap(self) -> None:
        """Collect the shims that have ended."""
        for pid in tuple(self._dying | self._living) if len(self._living) < 16 else tuple(self._dying):
            done, _ = os.waitpid(pid, os.WNOHANG)
            if done:
                self._dying.discard(pid)
                self._living.discard(pid)

    @property
    def num_dying(self) -> int:
        return len(self._dying)

    def _start(self, shape: PodShape) -> None:
        pod = start_pod(shape, self._own_pidfd)
        self._living.add(pod.pid)
        self._starting[shape] = self._starting.get(shape, 0) + 1
        self._loop.on_readable(pod.report_fd, lambda: self._report(pod))

    def _report(self, pod: Pod) -> None:
        report = os.read(pod.report_fd, 1024)
        self._loop.forget(pod.report_fd)
        os.close(pod.report_fd)
        self._starting[pod.shape] -= 1
        if report == READY:
            self.last_error = None
            self._ready.setdefault(pod.shape, deque()).append(pod)
        else:
            self.last_error = decode_report(report)
            self.end(pod)
        self._on_ready()


def decode_report(report: bytes) -> str:
    """What a process said of its own failure before any user code ran in it."""
    return report.decode("utf-8", "replace") or "it ended before it was ready"
