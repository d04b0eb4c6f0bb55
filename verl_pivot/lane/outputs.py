"""Output streams of a program -> what is kept of them, read without ever waiting."""

import os
from typing import Any

_CHUNK_BYTES = 65536
_FLOOD_BYTES = 1024**2


class Capture:
    """The reading end of one stream: keeps the first bytes, counts all of them."""

    def __init__(self, max_kept_bytes: int) -> None:
        self.max_kept_bytes = max_kept_bytes
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.kept = bytearray()
        self.num_bytes = 0
        self.at_end = False

    def read(self) -> bool:
        """Take what is there, at most one chunk; False if there was nothing."""
        try:
            data = os.read(self.read_end, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        self.at_end = not data
        self.num_bytes += len(data)
        room = self.max_kept_bytes - len(self.kept)
        self.kept += data[: max(room, 0)]
        return bool(data)

    @property
    def is_flood(self) -> bool:
        """More was written than anybody may write."""
        return self.num_bytes > max(_FLOOD_BYTES, self.max_kept_bytes)

    def drain(self) -> None:
        """Take what is there now; somebody may write on, so not without end."""
        start = self.num_bytes
        while self.num_bytes - start < _FLOOD_BYTES and self.read():
            pass

    def take(self, name: str) -> dict[str, Any]:
        """The fields of a result for the stream `name`; then start afresh."""
        fields = {
            name: decode(bytes(self.kept)),
            f"{name}_bytes": self.num_bytes,
            f"{name}_truncated": self.num_bytes > self.max_kept_bytes,
        }
        self.kept.clear()
        self.num_bytes = 0
        return fields


def decode(data: bytes) -> str:
    """UTF-8; any other byte is written as \\xNN, so that no output is lost or fails."""
    return data.decode("utf-8", "backslashreplace")
