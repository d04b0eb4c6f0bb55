"""Pipe -> its first bytes, and the number of all bytes; they are read as they come, so that no writer ever blocks."""

import asyncio
import os
from collections.abc import Callable

_READ_BYTES = 64 * 1024


class Drain:
    """Reader of a pipe, until every writer has closed it."""

    def __init__(self, fd: int, *, keep_bytes: int, max_bytes: int, on_excess: Callable[[], None]) -> None:
        """Begin to read.

        Args:
            fd: Read end of the pipe; the Drain closes it.
            keep_bytes: Number of bytes that are kept; the rest is read and dropped.
            max_bytes: Number of bytes above which `on_excess` is called, once.
            on_excess: Function that ends the writer.
        """
        self._fd = fd
        self._keep_bytes = keep_bytes
        self._max_bytes = max_bytes
        self._on_excess = on_excess
        self._kept = bytearray()
        self._ended = asyncio.Event()
        self.num_bytes = 0
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read)

    @property
    def exceeded(self) -> bool:
        return self.num_bytes > self._max_bytes

    def kept(self, start: int, end: int) -> bytes:
        """The kept bytes from position `start` to position `end`, as far as they have come."""
        return bytes(self._kept[start:end])

    def text(self, max_bytes: int) -> str:
        """First bytes as text; bytes that are no UTF-8 become \\xNN, and a character cut off at the end is dropped."""
        kept = bytes(self._kept[:max_bytes])
        if self.num_bytes > len(kept):
            kept = _without_cut_character(kept)
        return kept.decode("utf-8", "backslashreplace")

    async def end(self) -> None:
        """Wait until everything is read."""
        await self._ended.wait()

    def close(self) -> None:
        """Stop reading; harmless after the end."""
        if not self._ended.is_set():
            self._ended.set()
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)

    def _read(self) -> None:
        chunk = os.read(self._fd, _READ_BYTES)
        if not chunk:
            self.close()
            return
        exceeded = self.exceeded
        self.num_bytes += len(chunk)
        self._kept += chunk[: self._keep_bytes - len(self._kept)]
        if self.exceeded and not exceeded:
            self._on_excess()


def _without_cut_character(kept: bytes) -> bytes:
    """Drop an unfinished UTF-8 character at the end, which is up to three bytes."""
    for num_bytes in range(1, min(3, len(kept)) + 1):
        first = kept[-num_bytes]
        if first >= 0xC0:
            needed = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return kept[:-num_bytes] if num_bytes < needed else kept
        if first < 0x80:
            return kept
    return kept
