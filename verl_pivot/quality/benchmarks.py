"""Files of benchmarks -> an index of their word n-grams."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verl_pivot.data.files import Place, RawRow, read_rows
from verl_pivot.errors import DataError
from verl_pivot.quality.ngrams import Hashes, ngram_hashes, words_of
from verl_pivot.types import Json


class Overlap(NamedTuple):
    place: str
    """Where the benchmark's row stands: its file and number."""
    words: str
    """The first n-gram that is shared."""
    num_ngrams: int
    """Different ones that are shared with this row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    place: str
    words: tuple[str, ...]


def read_benchmark(path: Path, columns: Sequence[str]) -> Iterator[BenchmarkRow]:
    """The text of each row: of the columns, or all of it. A row of a .txt file is a line.

    Raises:
        DataError: If the file cannot be read, or a row lacks a column.
    """
    if path.suffix == ".txt":
        yield from _lines(path)
        return
    for row in read_rows(path):
        yield BenchmarkRow(place=str(row.place), words=tuple(words_of(_text(row, columns))))


def _lines(path: Path) -> Iterator[BenchmarkRow]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield BenchmarkRow(
                place=str(Place(file=str(path), unit="line", number=number)), words=tuple(words_of(line))
            )


def _text(row: RawRow, columns: Sequence[str]) -> str:
    try:
        decoded = row.decoded()
    except DataError as error:
        raise DataError(f"{row.place} is no row of a benchmark: {error}") from error
    if missing := [column for column in columns if column not in decoded]:
        raise DataError(
            f"{row.place} has no column {missing[0]!r}, it has {', '.join(decoded)}; name others in `columns`"
        )
    values = [decoded[column] for column in columns] if columns else list(decoded.values())
    return "\n".join(text for value in values for text in _texts(value))


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _texts(child)


class BenchmarkIndex:
    """Which rows of the benchmarks share word n-grams with a text.

    An n-gram that stands in many rows is a phrase of the benchmark, not a task of it, and is left out.
    """

    def __init__(self, rows: Iterable[BenchmarkRow], *, n: int, max_rows_per_ngram: int) -> None:
        self._n = n
        # Benchmarks are often written several times over, to sample each task more than once.
        self._rows = tuple({row.words: row for row in reversed(list(rows))}.values())[::-1]
        self.num_rows = len(self._rows)
        self.num_short_rows = sum(len(row.words) < n for row in self._rows)
        """Rows of fewer than n words, with which nothing can overlap."""
        hashes = [np.unique(ngram_hashes(row.words, n)) for row in self._rows]
        owners = np.repeat(np.arange(len(hashes), dtype=np.int32), [len(own) for own in hashes])
        flat = np.concatenate([np.empty(0, dtype=np.uint64), *hashes])
        order = np.argsort(flat, kind="stable")
        self._hashes, self._owners = flat[order], owners[order]
        _, group, size = np.unique(self._hashes, return_inverse=True, return_counts=True)
        is_rare = size[group] <= max_rows_per_ngram if len(group) else np.empty(0, dtype=bool)
        self.num_common_ngrams = int((size > max_rows_per_ngram).sum())
        self._hashes, self._owners = self._hashes[is_rare], self._owners[is_rare]

    def overlap(self, words: Sequence[str]) -> Overlap | None:
        """The row with the most different n-grams in these words, the first of such rows; None: there is none."""
        own = np.unique(ngram_hashes(words, self._n))
        shared = own[self._contains(own)]
        if not len(shared):
            return None
        ngrams = self._spelled(words, shared)
        num_by_row: dict[int, int] = {}
        for owner in self._owners[np.isin(self._hashes, shared)].tolist():
            num_by_row.setdefault(owner, 0)
        for owner in num_by_row:
            num_by_row[owner] = len(ngrams & _ngrams(self._rows[owner].words, self._n))
        best = max(num_by_row, key=lambda owner: (num_by_row[owner], -owner))
        if not num_by_row[best]:  # two n-grams with one hash
            return None
        row = self._rows[best]
        common = ngrams & _ngrams(row.words, self._n)
        first = next(ngram for ngram in _in_order(row.words, self._n) if ngram in common)
        return Overlap(place=row.place, words=" ".join(first), num_ngrams=num_by_row[best])

    def _contains(self, hashes: Hashes) -> NDArray[np.bool_]:
        if not len(self._hashes):
            return np.zeros(len(hashes), dtype=bool)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        found: NDArray[np.bool_] = self._hashes[at] == hashes
        return found

    def _spelled(self, words: Sequence[str], shared: Hashes) -> set[tuple[str, ...]]:
        """The n-grams of these hashes, since two n-grams could have one hash."""
        positions = np.flatnonzero(np.isin(ngram_hashes(words, self._n), shared))
        return {tuple(words[at : at + self._n]) for at in positions.tolist()}


def _in_order(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[at : at + n]) for at in range(len(words) - n + 1))


def _ngrams(words: Sequence[str], n: int) -> set[tuple[str, ...]]:
    return set(_in_order(words, n))
