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
    """What a text shares with one row of a benchmark."""

    place: str
    """File and number of the benchmark's row."""
    words: str
    """First n-gram of the row that the text has too."""
    num_ngrams: int
    """Number of different n-grams that both have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """Words of one row of a benchmark."""

    place: str
    """File and number of the row."""
    words: tuple[str, ...]


def read_benchmark(path: Path, columns: Sequence[str]) -> Iterator[BenchmarkRow]:
    """Words of each row: from the named columns, or from all if none is named. Each line of a .txt file is a row.

    Raises:
        DataError: If the file cannot be read, or a row lacks a named column.
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
        raise DataError(f"{row.place} cannot be read as a row of a benchmark: {error}") from error
    if missing := [column for column in columns if column not in decoded]:
        raise DataError(
            f"{row.place} has no column {missing[0]!r}, only {', '.join(decoded)}; name some of these in `columns`"
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
    """Index of the benchmarks' rows by their word n-grams; finds the row that shares most of them with a text.

    An n-gram that many rows have belongs to the wording of the benchmark, not to one task, and is left out.
    """

    def __init__(self, rows: Iterable[BenchmarkRow], *, n: int, max_rows_per_ngram: int) -> None:
        self._n = n
        # Equal rows count once: files of benchmarks often repeat each task, to sample it more than once.
        self._rows = tuple({row.words: row for row in reversed(list(rows))}.values())[::-1]
        self.num_rows = len(self._rows)
        self.num_short_rows = sum(len(row.words) < n for row in self._rows)
        """Rows of fewer than n words, which share no n-gram with anything."""
        hashes = [np.unique(ngram_hashes(row.words, n)) for row in self._rows]
        owners = np.repeat(np.arange(len(hashes), dtype=np.int32), [len(row_hashes) for row_hashes in hashes])
        flat = np.concatenate([np.empty(0, dtype=np.uint64), *hashes])
        order = np.argsort(flat, kind="stable")
        self._hashes, self._owners = flat[order], owners[order]
        _, group, size = np.unique(self._hashes, return_inverse=True, return_counts=True)
        is_rare = size[group] <= max_rows_per_ngram if len(group) else np.empty(0, dtype=bool)
        self.num_common_ngrams = int((size > max_rows_per_ngram).sum())
        self._hashes, self._owners = self._hashes[is_rare], self._owners[is_rare]

    def overlap(self, words: Sequence[str]) -> Overlap | None:
        """The row that shares the most different n-grams with these words, the first of several; None if none does."""
        hashes = np.unique(ngram_hashes(words, self._n))
        shared = hashes[self._contains(hashes)]
        if not len(shared):
            return None
        ngrams = self._ngrams_of(words, shared)
        owners = sorted(set(self._owners[np.isin(self._hashes, shared)].tolist()))
        num_by_row = {owner: len(ngrams & _ngrams(self._rows[owner].words, self._n)) for owner in owners}
        best = max(num_by_row, key=num_by_row.__getitem__)
        if not num_by_row[best]:  # only hashes are equal, not words
            return None
        row = self._rows[best]
        first = next(ngram for ngram in _in_order(row.words, self._n) if ngram in ngrams)
        return Overlap(place=row.place, words=" ".join(first), num_ngrams=num_by_row[best])

    def _contains(self, hashes: Hashes) -> NDArray[np.bool_]:
        if not len(self._hashes):
            return np.zeros(len(hashes), dtype=bool)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        found: NDArray[np.bool_] = self._hashes[at] == hashes
        return found

    def _ngrams_of(self, words: Sequence[str], hashes: Hashes) -> set[tuple[str, ...]]:
        """The n-grams of the words with these hashes, to compare the words themselves: two n-grams may share a hash."""
        positions = np.flatnonzero(np.isin(ngram_hashes(words, self._n), hashes))
        return {tuple(words[at : at + self._n]) for at in positions.tolist()}


def _in_order(words: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[at : at + n]) for at in range(len(words) - n + 1))


def _ngrams(words: Sequence[str], n: int) -> set[tuple[str, ...]]:
    return set(_in_order(words, n))
