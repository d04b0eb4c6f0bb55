"""Kept output of captures -> OutputAnswers while a program runs, one at a time: the next is sent when it is asked for.

The output itself stays in the captures, and the last answer has it whole. So a slow reader costs no memory, delays no
program, and changes no result: it only misses pieces that the last answer then brings.
"""

import binascii
from collections.abc import Callable

from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.event_loop import EventLoop, Timer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import OutputAnswer

PAUSE_SECONDS = 0.02
"""Minimum seconds between two pieces, so that a program that prints single characters causes few messages."""
PIECE_BYTES = 32 * 1024
"""Maximum bytes of each stream in one piece."""


class OutputFeed:
    """Output of one program or cell on its way to the service."""

    def __init__(self, loop: EventLoop, send: "Callable[[OutputAnswer], None]") -> None:
        self._loop = loop
        self._send = send
        self._outputs: tuple[Capture, ...] = ()
        self._sent = [0, 0]
        """Bytes of stdout and of stderr that were sent."""
        self._is_asked = True
        self._pause: Timer | None = None
        """Timer of the pause after a piece; None outside of a pause."""

    @property
    def has_begun(self) -> bool:
        """Whether something was sent."""
        return any(self._sent)

    def follow(self, outputs: tuple[Capture, Capture]) -> None:
        """Send the output of these captures, which belong to the program that has just begun."""
        self._outputs = outputs
        for output in outputs:
            output.on_kept = self._send_piece
        self._send_piece()

    def ask(self) -> None:
        """Send the next piece as soon as there is one."""
        self._is_asked = True
        self._send_piece()

    def end(self) -> None:
        """Send nothing more, as the last answer will have the whole output; harmless to repeat."""
        for output in self._outputs:
            output.on_kept = None
        self._outputs = ()
        if self._pause is not None:
            self._pause.cancel()

    def _send_piece(self) -> None:
        if not self._outputs or not self._is_asked or self._pause is not None:
            return
        begins = zip(self._outputs, self._sent, strict=True)
        pieces = [bytes(output.kept[start : start + PIECE_BYTES]) for output, start in begins]
        if not any(pieces):
            return
        self._is_asked = False
        self._sent = [start + len(piece) for start, piece in zip(self._sent, pieces, strict=True)]
        self._pause = self._loop.after(PAUSE_SECONDS, self._end_pause)
        stdout, stderr = (binascii.b2a_base64(piece, newline=False).decode() for piece in pieces)
        self._send({"kind": "output", "stdout": stdout, "stderr": stderr})

    def _end_pause(self) -> None:
        self._pause = None
        self._send_piece()
