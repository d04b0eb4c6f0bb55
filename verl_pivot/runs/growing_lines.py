"""File of lines that a training may still be writing -> its whole lines, each call from where the last one ended."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

CHUNK_BYTES = 16 << 20
"""Bytes that one call reads; a longer line is read whole."""
_TAIL_BYTES = 1024
"""Bytes before the place up to which a file was read that must stay as they were; others mean another file."""


class PlacedLine(NamedTuple):
    """One line with its place in the file."""

    number: int
    """Number of the line, from 1."""
    offset: int
    """Bytes of the file before the text."""
    text: bytes
    """The line without white space at its ends."""


class NewLines(NamedTuple):
    """Lines of a file that were not read yet."""

    lines: list[PlacedLine]
    """The new lines, without blank ones."""
    is_replaced: bool
    """Whether the file is another one than before, so that all lines that were read before are void."""
    is_all: bool
    """Whether the file has no more whole lines at present."""


class GrowingLines:
    """Reader of one file; a last line without a line break waits until it has one, or is a whole JSON object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = self._num_lines = 0
        self._tail = b""
        """Last bytes that were read; a file that is rewritten in place has others there."""
        self._identity: int | None = None
        self._lacks_break = False
        """Whether the last line was read before its line break was written."""

    def read(self) -> NewLines:
        """The next lines.

        Raises:
            OSError: If the file cannot be read.
        """
        with self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            is_known = self._identity in (None, status.st_ino) and self._is_unchanged(file)
            if not is_known:
                self._offset, self._num_lines, self._tail, self._lacks_break = 0, 0, b"", False
            self._identity = status.st_ino
            file.seek(self._offset)
            data = file.read(CHUNK_BYTES)
            while b"\n" not in data and (more := file.read(CHUNK_BYTES)):
                data += more
        if self._lacks_break and data.startswith(b"\n"):
            self._pass(b"\n")
            data, self._lacks_break = data[1:], False
        is_all = self._offset + len(data) >= status.st_size
        end = data.rfind(b"\n") + 1
        if data:
            self._lacks_break = is_all and _is_object(data[end:])
        return NewLines(list(self._placed(data if self._lacks_break else data[:end])), not is_known, is_all)

    def _placed(self, data: bytes) -> Iterator[PlacedLine]:
        offset = self._offset
        for text in data.removesuffix(b"\n").split(b"\n") if data else ():
            self._num_lines += 1
            if stripped := text.strip():
                yield PlacedLine(self._num_lines, offset + len(text) - len(text.lstrip()), stripped)
            offset += len(text) + 1
        self._pass(data)

    def _pass(self, data: bytes) -> None:
        """Go on behind bytes that were read."""
        self._offset += len(data)
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    def _is_unchanged(self, file: BinaryIO) -> bool:
        """Whether the file still has the bytes that were read last at their place; a shorter file has not."""
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail


def _is_object(text: bytes) -> bool:
    if not text.rstrip().endswith(b"}"):
        return False
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
