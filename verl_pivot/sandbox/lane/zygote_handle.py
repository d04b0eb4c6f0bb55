"""A zygote as its lane sees it: asked to fork, it reports the start and the end of each child."""

import os
import signal
import socket
import sys
from typing import Protocol

from verl_pivot.sandbox.lane.event_loop import Callback, EventLoop, Timer
from verl_pivot.sandbox.lane.fd_passing import receive, send
from verl_pivot.sandbox.lane.pods import send_signal
from verl_pivot.sandbox.lane.procfs import private_bytes
from verl_pivot.sandbox.lane.zygote import BIND_NOW, CHANNEL, OUTER_PROC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.process_messages import PodEntry, ZygoteReport

ANSWER_SECONDS = 10.0
"""Seconds after which a zygote that owes an answer is replaced."""


class Child(Protocol):
    """Receiver of what a zygote reports of one forked process."""

    @property
    def is_spare(self) -> bool:
        """Whether the process waits for a task."""
        ...

    def on_forked(self, pid: int) -> None: ...

    def on_fork_failed(self, reason: str) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None: ...

    def on_zygote_lost(self) -> None: ...


class ZygoteHandle:
    """A zygote with `modules` imported; a fresh one replaces it when it dies, hangs or has forked `max_forks` times."""

    def __init__(
        self,
        loop: EventLoop,
        modules: tuple[str, ...],
        *,
        outer_proc: int | None,
        max_forks: int,
        on_ready: Callback,
    ) -> None:
        """Start the zygote.

        Args:
            loop: The lane's event loop.
            modules: Modules that it imports.
            outer_proc: Descriptor of the service's /proc; None where pods mount their own.
            max_forks: Number of forks after which a fresh zygote replaces it.
            on_ready: Called whenever a zygote is ready.
        """
        self.is_ready = False
        self.resident_bytes = 0
        """Memory that each child shares with the zygote, yet shows as its own."""
        self._loop = loop
        self._modules = modules
        self._has_proc = outer_proc is None
        self._outer_proc = outer_proc
        self._max_forks = max_forks
        self._on_ready = on_ready
        self._timer = Timer(lambda: None)
        self._start()

    def fork(self, child: Child, entry: "PodEntry", fds: tuple[int, ...]) -> None:
        """Ask for a process in a pod; `child` receives the reports.

        Args:
            child: Receiver of the reports.
            entry: How the process enters its pod.
            fds: pidfd of the pod's shim, the process's ends of its order and report channels, and the entrances of its
                control groups, if there are any.
        """
        self._num_forks += 1
        self._asked[self._num_forks] = child
        self._expect_answers()
        try:
            send(self._channel, (self._num_forks, entry), fds)
        except OSError:
            self.replace()

    def replace(self) -> None:
        """Kill the zygote, start another, and report the loss to the receiver of each of its processes.

        Raises:
            RuntimeError: If the zygote was never ready: another one would not be either, so the lane has to end.
        """
        if not self.is_ready:
            raise RuntimeError(f"the zygote with the modules {self._modules} does not start")
        lost = (*self._asked.values(), *self._running.values())
        self._timer.cancel()
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)
        self._start()
        for child in lost:
            child.on_zygote_lost()

    def _start(self) -> None:
        """Start a fresh interpreter; a fork of the lane would hold data of programs."""
        self.is_ready = False
        self._num_forks = 0
        self._asked: dict[int, Child] = {}
        self._running: dict[int, Child] = {}
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        call = f"main({self._modules!r}, {self._has_proc})"
        code = f"import sys; sys.path[:0] = {sys.path[:1]!r}; from verl_pivot.sandbox.lane.zygote import main; {call}"
        environment = {**os.environ, BIND_NOW: "1"}
        argv = [sys.executable, "-P", "-s", "-B", "-c", code]
        passed = [(theirs.fileno(), CHANNEL), *([] if self._outer_proc is None else [(self._outer_proc, OUTER_PROC)])]
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in passed]
        self.pid = os.posix_spawn(sys.executable, argv, environment, file_actions=actions)
        self._pidfd = os.pidfd_open(self.pid)
        theirs.close()
        self._loop.on_readable(self._channel.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        try:
            received = receive(self._channel)
        except OSError:
            received = None
        if received is None:
            self.replace()
        else:
            report: ZygoteReport = received[0]
            self._on_report(report)

    def _on_report(self, report: "ZygoteReport") -> None:
        if report[0] == "ready":
            self.is_ready = True
            self.resident_bytes = private_bytes(self.pid) if self._has_proc else 0
            self._on_ready()
        elif report[0] == "forked":
            _, number, pid = report
            child = self._running[pid] = self._take_asked(number)
            child.on_forked(pid)
        elif report[0] == "failed":
            _, number, reason = report
            self._take_asked(number).on_fork_failed(reason)
        else:
            _, pid, status, cpu_seconds, peak_bytes = report
            self._running.pop(pid).on_exited(status, cpu_seconds, peak_bytes)
            if self._num_forks >= self._max_forks and not self._asked and self._has_only_spares:
                self.replace()

    @property
    def _has_only_spares(self) -> bool:
        return all(child.is_spare for child in self._running.values())

    def _take_asked(self, number: int) -> Child:
        child = self._asked.pop(number)
        self._expect_answers()
        return child

    def _expect_answers(self) -> None:
        """Restart the time limit for the zygote's answers, if it owes any."""
        self._timer.cancel()
        if self._asked:
            self._timer = self._loop.after(ANSWER_SECONDS, self.replace)
