"""A zygote as its lane sees it: asked to fork, it tells of each child's start and end."""

from typing import Any, Protocol

from verl_pivot.lane.helpers import Helper
from verl_pivot.lane.loop import Callback, Loop
from verl_pivot.lane.watchdog import resident_bytes


class Child(Protocol):
    """Who waits for a forked process."""

    def on_forked(self, pid: int) -> None: ...

    def on_fork_failed(self, reason: str) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None: ...

    def on_zygote_lost(self) -> None: ...


class Zygote:
    """One warm interpreter with `modules` imported; it comes back when it dies, hangs or has forked its share."""

    def __init__(
        self, loop: Loop, modules: tuple[str, ...], *, has_proc: bool, max_forks: int, on_ready: Callback
    ) -> None:
        self.is_ready = False
        self.resident_bytes = 0
        """What each of its children shows as its own memory."""
        self._has_proc = has_proc
        self._max_forks = max_forks
        self._on_ready = on_ready
        self._num_forks = 0
        self._asked: dict[int, Child] = {}
        self._running: dict[int, Child] = {}
        arguments = (modules, has_proc)
        self._helper = Helper(loop, "zygote", arguments, on_message=self._on_message, on_end=self._on_end)

    def fork(self, child: Child, fds: tuple[int, ...]) -> None:
        """Ask for a process in a pod; see lane/zygote.py for the descriptors. The answers come to `child`."""
        self._num_forks += 1
        self._asked[self._num_forks] = child
        self._helper.ask((self._num_forks,), fds)

    def replace(self) -> None:
        """Start another in its place; whoever waited for one of its processes is told."""
        self._helper.replace()

    def _on_end(self) -> None:
        lost = (*self._asked.values(), *self._running.values())
        self.is_ready = False
        self._asked.clear()
        self._running.clear()
        self._num_forks = 0
        for child in lost:
            child.on_zygote_lost()

    def _on_message(self, message: tuple[Any, ...], _: tuple[int, ...]) -> None:
        kind, *rest = message
        if kind == "exited":
            pid, status, cpu_seconds, peak_bytes = rest
            self._running.pop(pid).on_exited(status, cpu_seconds, peak_bytes)
            if self._num_forks >= self._max_forks and not self._asked and not self._running:
                self.replace()
        elif kind == "ready":
            self.is_ready = True
            self.resident_bytes = resident_bytes(self._helper.pid) if self._has_proc else 0
            self._on_ready()
        else:
            self._helper.answered()
            self._answer_fork(kind, *rest)

    def _answer_fork(self, kind: str, number: int, outcome: Any) -> None:
        child = self._asked.pop(number)
        if kind == "failed":
            child.on_fork_failed(outcome)
        else:
            self._running[outcome] = child
            child.on_forked(outcome)
