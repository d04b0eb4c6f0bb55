"""Lines of a profile -> LineIndex, which finds the line of a turn and takes 32 bytes of memory per turn."""

from array import array
from collections.abc import Iterable
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

_NUM_BYTES = 16
"""Bytes of a turn's digest; the probability that two of ten million turns have the same digest is 10^-25."""


class _Turn(msgspec.Struct):
    """The fields of a line that identify its turn."""

    trajectory_id: str
    turn_index: int


_DECODER = msgspec.json.Decoder(_Turn)


def turn_of(line: bytes) -> tuple[str, int]:
    """(trajectory_id, turn_index) of a line; the line's other fields are not decoded.

    Raises:
        msgspec.MsgspecError: If the line does not identify a turn; UnicodeDecodeError or RecursionError if it is not
            UTF-8 or is nested too deeply.
    """
    turn = _DECODER.decode(line)
    return turn.trajectory_id, turn.turn_index


class LineIndex:
    """Index of a profile's lines by turn; `(trajectory_id, turn_index) in index` tests whether a turn is there."""

    def __init__(self, lines: Iterable[tuple[tuple[str, int], int]]) -> None:
        """Index all lines.

        Args:
            lines: (turn, offset of the line in bytes) of every line, in the order of the file.
        """
        digests, offsets = array("Q"), array("Q")
        for turn, offset in lines:
            digests.frombytes(_digest(turn))
            offsets.append(offset)
        pairs = np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)
        self._order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        """[num_lines] numbers of the lines, sorted by digest; lines of one turn stay in the order of the file."""
        self._first, self._second = pairs[self._order, 0], pairs[self._order, 1]
        self._offsets: NDArray[np.uint64] = np.frombuffer(offsets, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, turn: tuple[str, int]) -> bool:
        return self.line(turn) is not None

    def line(self, turn: tuple[str, int]) -> int | None:
        """Number of the turn's first line, counted from 0; None if the file lacks the turn."""
        first, second = np.frombuffer(_digest(turn), dtype=np.uint64)
        begin, end = np.searchsorted(self._first, first), np.searchsorted(self._first, first, side="right")
        (found,) = np.nonzero(self._second[begin:end] == second)
        return int(self._order[begin + found[0]]) if len(found) else None

    def offset(self, line: int) -> int:
        """Offset in bytes of the line with this number."""
        return int(self._offsets[line])

    def first_repeat(self) -> int | None:
        """Number of the first line that repeats the turn of an earlier line; None if no line does."""
        same = (self._first[1:] == self._first[:-1]) & (self._second[1:] == self._second[:-1])
        return int(self._order[1:][same].min()) if same.any() else None


def _digest(turn: tuple[str, int]) -> bytes:
    trajectory_id, turn_index = turn
    text = f"{turn_index} {trajectory_id}".encode(errors="surrogatepass")
    return blake2b(text, digest_size=_NUM_BYTES).digest()
