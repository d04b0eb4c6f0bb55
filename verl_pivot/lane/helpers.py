"""A helper process of a lane: started clean, spoken to over a socket, replaced when it dies or hangs."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from verl_pivot.lane.loop import Loop, Timer
from verl_pivot.lane.passing import receive, send

HELPER_SECONDS = 10.0
"""A helper that owes an answer for longer is replaced."""


class Helper:
    """Runs `main(channel_fd, *arguments)` of one of our modules in a fresh interpreter, and again when it ends."""

    def __init__(
        self,
        loop: Loop,
        module: str,
        arguments: tuple[object, ...],
        *,
        on_message: Callable[[Any, tuple[int, ...]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._module = module
        self._arguments = arguments
        self._on_message = on_message
        self._on_end = on_end
        self._num_owed = 0
        self._has_spoken = False
        self._timer = Timer(lambda: None)
        self._start()

    def ask(self, message: tuple[object, ...], fds: tuple[int, ...] = ()) -> None:
        """Send a request that is answered by one message at least."""
        self._num_owed += 1
        if self._num_owed == 1:
            self._timer = self._loop.after(HELPER_SECONDS, self.replace)
        try:
            send(self._channel, message, fds)
        except OSError:
            self.replace()

    def answered(self) -> None:
        """One of its messages was the answer to a request."""
        self._num_owed -= 1
        self._timer.cancel()
        if self._num_owed:
            self._timer = self._loop.after(HELPER_SECONDS, self.replace)

    def replace(self) -> None:
        """Kill it and start another; `on_end` tells those who waited for it.

        Raises:
            RuntimeError: If it never said anything: another would do no better, and the lane has to end.
        """
        if not self._has_spoken:
            raise RuntimeError(f"the {self._module} of the lane does not start")
        self._timer.cancel()
        self._num_owed = 0
        self._has_spoken = False
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        os.kill(self.pid, signal.SIGKILL)  # our child, not yet reaped: the number is still its own
        os.waitpid(self.pid, 0)
        self._start()
        self._on_end()

    def _start(self) -> None:
        """A fresh interpreter, not a fork of ours: it must hold nothing of any program."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        arguments = ", ".join(map(repr, (theirs.fileno(), *self._arguments)))
        code = f"import sys; sys.path[:] = {sys.path!r}; from verl_pivot.lane.{self._module} import main; main({arguments})"
        options = [sys.executable, "-P", "-s", "-S", "-B", "-c", code]
        self.pid = os.posix_spawn(sys.executable, options, os.environ)
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
            self._has_spoken = True
            self._on_message(*received)
