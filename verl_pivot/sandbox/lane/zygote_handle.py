"""A zygote as its lane sees it: the lane asks it to fork, and it reports the start and the end of each child."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Protocol

from verl_pivot.sandbox.lane.event_loop import Callback, EventLoop, Timer
from verl_pivot.sandbox.lane.fd_passing import receive, send
from verl_pivot.sandbox.lane.pods import send_signal
from verl_pivot.sandbox.lane.procfs import private_bytes
from verl_pivot.sandbox.lane.zygote import BIND_NOW, CHANNEL, IMPORT_FROM, OUTER_PROC

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import ZygotePlan
    from verl_pivot.sandbox.lane.process_messages import PodEntry, ZygoteReport

ANSWER_SECONDS = 10.0
"""Seconds after which a zygote that owes an answer is replaced."""
WARM_UP_SECONDS = 60.0
"""Maximum seconds of one warm-up."""
_REMEDY = "correct it in the languages file, or set it to null there"


class Child(Protocol):
    """Receiver of a zygote's reports about one forked process."""

    @property
    def is_spare(self) -> bool:
        """Whether the process waits for a task."""
        ...

    def on_forked(self, pid: int) -> None: ...

    def on_fork_failed(self, reason: str) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None: ...

    def on_zygote_lost(self) -> None: ...


class ZygoteHandle:
    """A zygote; a fresh one replaces it when it dies, hangs or has forked `max_forks` times."""

    def __init__(
        self,
        loop: EventLoop,
        plan: "ZygotePlan",
        *,
        outer_proc: int | None,
        max_forks: int,
        on_ready: Callback,
        on_broken: Callable[[str], None],
    ) -> None:
        """Start the zygote.

        Args:
            loop: The lane's event loop.
            plan: Modules that it imports, and its warm-ups.
            outer_proc: Descriptor of the service's /proc; None where pods mount their own.
            max_forks: Number of forks after which a fresh zygote replaces it.
            on_ready: Called whenever a zygote is ready.
            on_broken: Called with the reason if a zygote does not get ready: another zygote would not either.
        """
        self.is_ready = False
        self.resident_bytes = 0
        """Memory that each child shares with the zygote, yet shows as its own."""
        self._loop = loop
        self._plan = plan
        self._has_proc = outer_proc is None
        self._outer_proc = outer_proc
        self._max_forks = max_forks
        self._on_ready = on_ready
        self._on_broken = on_broken
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
        """Kill the zygote, start another, and report the loss to the receiver of each of its processes."""
        lost = (*self._asked.values(), *self._running.values())
        self._end()
        self._start()
        for child in lost:
            child.on_zygote_lost()

    def _end(self) -> None:
        """Kill the zygote."""
        self._timer.cancel()
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        send_signal(self._pidfd, signal.SIGKILL)
        os.close(self._pidfd)

    def _start(self) -> None:
        """Start a fresh interpreter, and not a fork of the lane, which would hold data of programs."""
        self.is_ready = False
        self._num_forks = 0
        self._warming = ""
        """Description of the warm-up that runs now or ran last; "" before the first."""
        self._asked: dict[int, Child] = {}
        self._running: dict[int, Child] = {}
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        modules, warm_ups = tuple(self._plan["modules"]), self._plan["warm_ups"]
        call = f"main({modules!r}, {warm_ups!r}, {self._plan['startup']!r}, {self._has_proc})"
        code = f"import sys; sys.path[:0] = {sys.path[:1]!r}; from verl_pivot.sandbox.lane.zygote import main; {call}"
        environment = {**os.environ, BIND_NOW: "1", IMPORT_FROM: ":".join(self._plan["import_from"])}
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
        if received is None and not self.is_ready:
            self._give_up(
                f"{self._warming} ended the interpreter; {_REMEDY}"
                if self._warming
                else "the interpreter ended while it imported modules"
            )
        elif received is None:
            self.replace()
        else:
            report: ZygoteReport = received[0]
            self._on_report(report)

    def _give_up(self, reason: str) -> None:
        """End a zygote that does not get ready, and report it."""
        self._end()
        self._on_broken(f"a zygote did not start: {reason}")

    def _on_report(self, report: "ZygoteReport") -> None:
        if report[0] == "warming":
            self._warming = f"the warm-up {report[1]!r}"
            self._timer.cancel()
            reason = f"{self._warming} did not end within {WARM_UP_SECONDS:g} s; {_REMEDY}"
            self._timer = self._loop.after(WARM_UP_SECONDS, partial(self._give_up, reason))
        elif report[0] == "failed_warm_up":
            self._give_up(f"{self._warming} failed: {report[1]}; {_REMEDY}")
        elif report[0] == "ready":
            self._timer.cancel()
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
