"""Calls of the host's functions by one cell, as its lane sees them: bytes of the interpreter -> CallAnswers -> replies.

The user's code can forge calls. So the kernel attests which process wrote each piece, each piece is bounded, and a
call that the interpreter's own code would not make ends the interpreter.
"""

import itertools
import socket
import time
from collections.abc import Callable

from verl_pivot.sandbox.lane.answers import (
    CREDENTIALS,
    MAX_CALL_BYTES,
    AnswerError,
    attested_pid,
    decode_answer,
    num_bytes_of,
    pack_fields,
)
from verl_pivot.sandbox.lane.event_loop import EventLoop, Timer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import CallAnswer, CallLimitFields

_CHUNK_BYTES = 64 * 1024
_LATE_SECONDS = 10.0
"""Seconds after the time limit of a reply at which the lane stops waiting; the service and the client stop before."""
_numbers = itertools.count(1)


class CallReceiver:
    """Socket for the calls of one cell; `theirs` is the interpreter's end."""

    def __init__(
        self,
        loop: EventLoop,
        pid: int,
        limits: "CallLimitFields",
        names: frozenset[str],
        *,
        on_call: "Callable[[CallAnswer], None]",
        kill: Callable[[str], None],
    ) -> None:
        """Begin to listen.

        Args:
            loop: The lane's event loop.
            pid: Process that runs the cell.
            limits: Limits of the calls.
            names: Names of the session's functions.
            on_call: Called with each call.
            kill: Called with the reason when the interpreter has to end.
        """
        self._ours, self.theirs = socket.socketpair()
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop = loop
        self._pid = pid
        self._limits = limits
        self._names = names
        self._on_call = on_call
        self._kill = kill
        self._received = bytearray()
        self._outgoing = memoryview(b"")
        self._num_calls = 0
        self._number: int | None = None
        """Number of the call that waits for its reply."""
        self._asked_at = 0.0
        self._waited_seconds = 0.0
        self._timer = Timer(lambda: None)
        loop.on_readable(self._ours.fileno(), self._on_readable)

    @property
    def waited_seconds(self) -> float:
        """Seconds in which the cell has waited for replies."""
        open_seconds = 0.0 if self._number is None else time.monotonic() - self._asked_at
        return self._waited_seconds + open_seconds

    def reply(self, number: int, value: str | None, error: str | None) -> None:
        """Reply to a call; ignored if the call does not wait for a reply."""
        if number == self._number:
            self._settle()
            self._reply(value, error)

    def close(self) -> None:
        """Stop listening: the cell has ended."""
        self._settle()
        self._loop.forget(self._ours.fileno())
        self._ours.close()

    def _settle(self) -> None:
        """Stop waiting for the reply to a call."""
        self._waited_seconds, self._number = self.waited_seconds, None
        self._timer.cancel()

    def _on_readable(self) -> None:
        room = socket.CMSG_SPACE(CREDENTIALS.size)
        try:
            data, ancillary, _, _ = self._ours.recvmsg(_CHUNK_BYTES, room, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:  # the interpreter closed its end with an unread reply in it
            data = b""
        if not data:  # an interrupted call closes the socket, and so may the cell's code
            self._settle()
            self._loop.forget(self._ours.fileno())
            return
        try:
            self._take(data, attested_pid(ancillary))
        except AnswerError as error:
            self._kill(f"a call of a function of the host was refused: {error}")

    def _take(self, data: bytes, pid: int) -> None:
        """Take one piece of a call.

        Raises:
            AnswerError: If the interpreter's own code would not have sent it.
        """
        if pid != self._pid:
            raise AnswerError("it came from another process")
        if self._number is not None or self._outgoing:
            raise AnswerError("it came before the reply to the previous call")
        self._received += data
        fields = decode_answer(self._received, 2, MAX_CALL_BYTES, 2 * MAX_CALL_BYTES)
        if fields is None:
            return
        if len(self._received) > num_bytes_of(fields):
            raise AnswerError("several calls came at once")
        self._received.clear()
        name, arguments = (_text(field) for field in fields)
        if name not in self._names:
            raise AnswerError("the session has no such function")
        self._pass_on(name, arguments)

    def _pass_on(self, name: str, arguments: str) -> None:
        self._num_calls += 1
        if self._num_calls > self._limits["max_calls"]:
            self._reply(
                None, f"this cell has called functions {self._limits['max_calls']} times, the limit for one cell"
            )
            return
        self._number, self._asked_at = next(_numbers), time.monotonic()
        self._timer = self._loop.after(self._limits["reply_seconds"] + _LATE_SECONDS, lambda: self._kill("no_reply"))
        self._on_call({"kind": "call", "call": self._number, "name": name, "arguments": arguments})

    def _reply(self, value: str | None, error: str | None) -> None:
        fields = tuple(None if text is None else text.encode("utf-8", "backslashreplace") for text in (value, error))
        self._outgoing = memoryview(pack_fields(fields))
        self._flush()

    def _flush(self) -> None:
        """Write as much of the reply as the interpreter takes."""
        fd = self._ours.fileno()
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self._ours.send(self._outgoing, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            self._loop.on_writable(fd, self._flush)
            return
        except OSError:  # nobody reads it any more
            self._outgoing = memoryview(b"")
        self._loop.on_writable(fd, None)


def _text(field: bytes | None) -> str:
    try:
        return (field or b"").decode()
    except UnicodeDecodeError as error:
        raise AnswerError(f"it is not valid UTF-8: {error.reason}") from error
