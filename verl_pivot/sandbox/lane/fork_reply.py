"""Answer of an interpreter that was asked to fork -> the reason, if it did not fork."""

from collections.abc import Callable

from verl_pivot.sandbox.lane.answers import AnswerError, AnswerSocket
from verl_pivot.sandbox.lane.event_loop import EventLoop

_MAX_REASON_BYTES = 1024


class ForkReply:
    """Waits for the answer; a branch that was forked says hello itself."""

    def __init__(self, loop: EventLoop, pid: int | None, refuse: Callable[[str], None]) -> None:
        """Begin to wait.

        Args:
            loop: The lane's event loop.
            pid: Process that is asked.
            refuse: Called with the reason if there is no branch.
        """
        self._loop = loop
        self._pid = pid
        self._refuse = refuse
        self._socket = AnswerSocket(num_fields=1, max_bytes=_MAX_REASON_BYTES, max_total_bytes=_MAX_REASON_BYTES)
        self.far_end = self._socket.theirs
        """Socket for the interpreter; the caller sends it and closes it."""
        loop.on_readable(self._socket.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        reason: bytes | None
        try:
            fields = self._socket.receive(self._pid)
            if fields is None:
                return
            (reason,) = fields
        except (OSError, EOFError, AnswerError):
            reason = b"its interpreter broke"
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        if reason is not None:
            self._refuse(reason.decode("utf-8", "backslashreplace"))
