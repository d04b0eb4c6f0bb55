"""A zygote process as its lane sees it: started clean, asked to fork, replaced when it dies, hangs or grows old."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Protocol

from verl_pivot.lane.frames import Message, receive_with_fds, send_with_fds
from verl_pivot.lane.loop import Loop
from verl_pivot.lane.watchdog import resident_bytes


class Child(Protocol):
    """Who waits for a forked process."""

    def on_forked(self, pid: int) -> None: ...

    def on_fork_failed(self, reason: str) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None: ...

    def on_zygote_lost(self) -> None: ...


class Zygote:
    """One warm interpreter with `modules` imported."""

    def __init__(self, loop: Loop, modules: tuple[str, ...], *, has_proc: bool, on_ready: Callable[[], None]) -> None:
        self.modules = modules
        self.is_ready = False
        self.is_lost = False
        self.num_forks = 0
        self.resident_bytes = 0
        self._has_proc = has_proc
        self._loop = loop
        self._on_ready = on_ready
        self._asked: dict[int, Child] = {}
        self._running: dict[int, Child] = {}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(True)
        theirs.set_inheritable(True)
        self._channel = ours
        self._pid = _start(theirs.fileno(), modules, has_proc=has_proc)
        theirs.close()
        loop.on_readable(ours.fileno(), self._on_message)

    @property
    def num_children(self) -> int:
        return len(self._asked) + len(self._running)

    def fork(self, child: Child, fds: tuple[int, ...]) -> None:
        """Ask for a process in a pod; see zygote.py for the descriptors. The answer comes to `child`."""
        self.num_forks += 1
        self._asked[self.num_forks] = child
        try:
            send_with_fds(self._channel, {"id": self.num_forks}, fds)
        except OSError:
            self.end()

    def end(self) -> None:
        """Kill it; whoever waited for one of its processes is told."""
        if self.is_lost:
            return
        self.is_lost = True
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        for child in (*self._asked.values(), *self._running.values()):
            child.on_zygote_lost()

    def _on_message(self) -> None:
        received = self._receive()
        if received is None:
            self.end()
        elif "ready" in received:
            self.is_ready = True
            self.resident_bytes = resident_bytes(self._pid) if self._has_proc else 0
            self._on_ready()
        elif "exited" in received:
            child = self._running.pop(received["exited"])
            child.on_exited(received["status"], received["cpu_seconds"], received["peak_bytes"])
        elif "failed" in received:
            self._asked.pop(received["id"]).on_fork_failed(received["failed"])
        else:
            child = self._asked.pop(received["id"])
            self._running[received["pid"]] = child
            child.on_forked(received["pid"])

    def _receive(self) -> Message | None:
        try:
            received = receive_with_fds(self._channel)
        except OSError:
            return None
        return None if received is None else received[0]


def _start(channel: int, modules: tuple[str, ...], *, has_proc: bool) -> int:
    """A fresh interpreter, not a fork of ours: it must hold nothing of other programs."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from verl_pivot.lane.zygote import main; main({channel}, {list(modules)!r}, has_proc={has_proc})"
    )
    arguments = [sys.executable, "-P", "-s", "-S", "-B", "-c", code]
    return os.posix_spawn(sys.executable, arguments, os.environ)
