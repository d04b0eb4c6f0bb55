"""Output of a sandboxed process -> its first bytes and its length; reading never blocks."""

import errno
import os
from collections.abc import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import OutputFields

_CHUNK_BYTES = 65536
_FLOOD_BYTES = 1024**2


class Capture:
    """A pipe for one output stream: keeps its first bytes, and counts all of them."""

    def __init__(self, max_kept_bytes: int) -> None:
        self.max_kept_bytes = max_kept_bytes
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.fchmod(self.write_end, 0o666)  # a program with another user id may open /dev/stdout
        self.kept = bytearray()
        self.num_bytes = 0
        self.at_end = False
        self.on_kept: Callable[[], None] | None = None
        """Called when more was kept; None if nobody follows the output."""

    @property
    def is_flood(self) -> bool:
        """Whether more was written than any program may write."""
        return self.num_bytes > max(_FLOOD_BYTES, self.max_kept_bytes)

    @property
    def text(self) -> str:
        """The kept bytes as UTF-8; any byte that is not UTF-8 becomes \\xNN, so that no output is lost or fails."""
        return bytes(self.kept).decode("utf-8", "backslashreplace")

    def read(self) -> bool:
        """Read one chunk at most; False if nothing was there."""
        try:
            data = os.read(self.read_end, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal ends with EIO
                raise
            data = b""
        self.at_end = not data
        self.num_bytes += len(data)
        room = self.max_kept_bytes - len(self.kept)
        self.kept += data[: max(room, 0)]
        if self.on_kept is not None and data and room > 0:
            self.on_kept()
        return bool(data)

    def drain(self) -> None:
        """Read what is there now; bounded, since a process that is still alive may go on writing."""
        start = self.num_bytes
        while self.num_bytes - start < _FLOOD_BYTES and self.read():
            pass

    def drained_a_flood(self) -> bool:
        """Read what is there now; returns whether more was written than is allowed."""
        self.drain()
        return self.is_flood

    def clear(self) -> None:
        """Begin afresh for the next cell."""
        self.kept.clear()
        self.num_bytes = 0


def take_output(outputs: tuple[Capture, Capture]) -> "OutputFields":
    """Output captured of stdout and stderr; both captures then begin afresh."""
    stdout, stderr = outputs
    fields: OutputFields = {
        "stdout": stdout.text,
        "stderr": stderr.text,
        "stdout_bytes": stdout.num_bytes,
        "stderr_bytes": stderr.num_bytes,
        "stdout_truncated": stdout.num_bytes > stdout.max_kept_bytes,
        "stderr_truncated": stderr.num_bytes > stderr.max_kept_bytes,
    }
    stdout.clear()
    stderr.clear()
    return fields
