"""Runs -> their rollouts by filter and order, from a DuckDB table that follows the dumps as they grow.

The table has no texts. They stay in the dumps, and are read there by their place (`opened.py`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow
import pyarrow.compute

from verl_pivot.errors import DataError
from verl_pivot.inspect.filter_values import refuse_impossible
from verl_pivot.inspect.filters import RolloutFilter, RolloutOrder
from verl_pivot.inspect.followed_dump import FollowedDump
from verl_pivot.inspect.rollout_rows import RolloutRow
from verl_pivot.inspect.rollout_table import RolloutTable
from verl_pivot.inspect.texts import RowPlace, rows_with_words
from verl_pivot.runs.metrics import MetricSeries
from verl_pivot.runs.run import DumpFile, TrainingRun
from verl_pivot.types import JsonObject

MAX_WORDS_SECONDS = 20.0
"""Seconds after which a search for words is given up."""
_READING_SECONDS = (0.2, 1.0)
"""Seconds after which a call of `refresh` reads no further chunk, so that its rows can be shown: for the first call,
and the maximum for later ones. A later call reads for a quarter of the time spent so far, since each call also takes a
fixed time."""
_FACETS = ("reason", "left_out", "stop_reason", "error_kinds", "data_source", "part")
_MAX_SHOWN_GROUP = 200
_MAX_VALUES = 50
"""Most frequent values of a column that filters offer."""


class OrderedRollouts(NamedTuple):
    """Rollouts that a filter leaves, in their order."""

    ids: bytes
    """[num_rollouts] ids, 4 bytes each in the machine's order."""
    groups: bytes
    """[num_rollouts] numbers of their groups, 4 bytes each in the machine's order."""
    mean_score: float | None
    num_kept: int


class ListedRollout(NamedTuple):
    """A rollout with its place among all that were read."""

    id: int
    run: int
    """Number of its run, from 0."""
    part: str
    file: int
    """Number of its dump."""
    file_name: str
    """Path of its dump below the run's folder."""
    group_number: int
    row: RolloutRow

    def as_dict(self) -> JsonObject:
        """All values by their names, without nesting."""
        return {**{name: value for name, value in self._asdict().items() if name != "row"}, **self.row._asdict()}


class RolloutPlace(msgspec.Struct, frozen=True):
    """Place of a rollout, by which another session finds it again."""

    run: int
    file: str
    """Path of its dump below the run's folder."""
    line: int


class RunIndex:
    """Rollouts and metrics of one run or several, as they are at present."""

    def __init__(self, runs: Sequence[TrainingRun], max_seconds: float | None = None) -> None:
        """Create the index; nothing is read yet.

        Args:
            runs: [num_runs] runs whose files are read.
            max_seconds: Seconds after which a query is ended; None takes the limit of a view.
        """
        self.runs = tuple(runs)
        self.metrics = [MetricSeries() for _ in runs]
        self.generation = 0
        """Number of changes so far."""
        self._table = RolloutTable(max_seconds)
        self._waiting: list[pyarrow.RecordBatch] = []
        """Rows that one call of `refresh` has read, and adds at its end."""
        self._files: dict[tuple[int, Path], FollowedDump] = {}
        self._by_number: list[FollowedDump] = []
        self._group_numbers = count(1)
        self._is_full = False
        """Whether the table has no room for more rows, so that no dump is read any more."""
        self._spent_seconds = 0.0
        """Seconds that all calls of `refresh` took to read dumps."""
        self._failures: dict[tuple[str, Path], str] = {}
        """{what was read from which file or folder: the sentence why it cannot be read}"""

    # ---- reading

    def refresh(self) -> bool:
        """Read a part of what is new; returns whether there is more to read at once."""
        is_changed = False
        for run, series in zip(self.runs, self.metrics, strict=True):
            is_changed |= self._guarded("metrics", run.path, partial(self._read_metrics, run, series))
        for number, run in enumerate(self.runs):
            is_changed |= self._guarded("dumps", run.path, partial(self._find_dumps, number, run))
        if not self._is_full:
            is_changed |= self._read_dumps()
        self.generation += is_changed
        return self.num_unread > 0

    def _read_dumps(self) -> bool:
        """Read a part of the dumps; returns whether anything changed."""
        is_changed = False
        began = time.monotonic()
        first, longest = _READING_SECONDS
        end = began + min(max(first, self._spent_seconds / 4), longest)
        for file in (each for each in self._by_number if each.is_unread):
            if time.monotonic() > end:
                break
            is_changed |= self._guarded("dump", file.dump.path, partial(self._read, file))
        try:
            self._table.add(self._waiting)
        except DataError as error:
            self._is_full = is_changed = True
            self._failures["table", Path()] = str(error)
        self._waiting.clear()
        self._spent_seconds += time.monotonic() - began
        return is_changed

    @property
    def num_unread(self) -> int:
        """Number of dumps that are still to be read to their present end."""
        return 0 if self._is_full else sum(file.is_unread for file in self._by_number)

    @property
    def num_files(self) -> int:
        return len(self._by_number)

    @property
    def problems(self) -> list[str]:
        """Sentences about what could not be read."""
        found = [run.config_problem for run in self.runs if run.config_problem is not None]
        found += self._failures.values()
        for series in self.metrics:
            if series.num_unreadable:
                found.append(f"{series.path}: {series.num_unreadable} lines are not metrics of a step and are left out")
        return [*found, *(problem for file in self._by_number for problem in file.problems)]

    def _guarded(self, what: str, path: Path, read: Callable[[], bool]) -> bool:
        """Call `read`; returns whether anything changed. An error is listed as a problem until reading succeeds."""
        key = (what, path)
        try:
            is_changed = read()
        except OSError as error:
            what_failed = f"{error.filename or path} cannot be read: {error.strerror}"
            sentence = f"{what_failed}; everything else is shown, and reading is retried"
            is_new = self._failures.get(key) != sentence
            self._failures[key] = sentence
            return is_new
        return self._failures.pop(key, None) is not None or is_changed

    @staticmethod
    def _read_metrics(run: TrainingRun, series: MetricSeries) -> bool:
        return series.read(run.metrics)

    def _find_dumps(self, number: int, run: TrainingRun) -> bool:
        """Follow dumps that are new; returns False, since none of their lines is read yet."""
        for dump in run.dumps:
            if (number, dump.path) not in self._files:
                followed = FollowedDump(len(self._by_number), number, dump)
                self._files[number, dump.path] = followed
                self._by_number.append(followed)
        return False

    def _read(self, file: FollowedDump) -> bool:
        part = file.read(self._group_numbers)
        if part.is_replaced:
            self._table.remove(file.number)
        if part.rows is not None:
            self._waiting.append(part.rows)
        return part.is_changed

    # ---- asking

    def ordered(self, wanted: RolloutFilter, order: RolloutOrder) -> OrderedRollouts:
        """Rollouts that the filter leaves.

        Raises:
            ConfigError: If the condition is not valid or takes too long, or if no rollout can have a wanted value.
        """
        where, values = wanted.sql()
        if not self.num_unread:  # a dump that is not read yet may hold a value that is unknown so far
            refuse_impossible(wanted, len(self.runs), self._values)
        if wanted.words:
            where, values = "id IN (SELECT unnest(?::UINTEGER[]))", [self._with_words(where, values, wanted.words)]
        columns = self._table.ask(
            f"SELECT id, group_number, score, kept FROM rollouts WHERE {where} ORDER BY {order.sql()}", *values
        )
        return OrderedRollouts(
            columns["id"].to_numpy().tobytes(),
            columns["group_number"].to_numpy().tobytes(),
            pyarrow.compute.mean(columns["score"]).as_py(),
            pyarrow.compute.sum(columns["kept"]).as_py() or 0,
        )

    def _values(self, column: str) -> list[str]:
        """Values that some rollout has in a column of texts."""
        return [each for (each,) in self.count(f"SELECT DISTINCT {column} FROM rollouts WHERE {column} <> ''")]

    def _with_words(self, where: str, values: Sequence[Any], words: str) -> list[int]:
        found = self._table.ask(
            f"SELECT id, file, byte_offset, num_bytes FROM rollouts WHERE {where} ORDER BY file, byte_offset", *values
        )
        columns = (found[name].to_pylist() for name in found.column_names)
        places = [RowPlace(each, self.dump(file).path, *place) for each, file, *place in zip(*columns, strict=True)]
        return rows_with_words(places, words, MAX_WORDS_SECONDS)

    def rows(self, ids: Sequence[int]) -> list[ListedRollout]:
        """[num_found] rollouts by their ids; one that was replaced meanwhile is not among them."""
        return self._rows("id IN (SELECT unnest(?::UINTEGER[])) ORDER BY id", list(ids))

    def group(self, group_number: int) -> list[ListedRollout]:
        """[group_size, at most 200] rollouts of a group."""
        return self._rows(f"group_number = ? ORDER BY id LIMIT {_MAX_SHOWN_GROUP}", group_number)

    def earlier(self, found: ListedRollout) -> Iterator[RowPlace]:
        """[at most 201] places of rollouts of the same group before one: the nearest ones, then the group's first."""
        before = "group_number = ? AND id < ? ORDER BY id"
        for order in (f"{before} DESC LIMIT {_MAX_SHOWN_GROUP}", f"{before} LIMIT 1"):
            yield from map(self.row_place, self._rows(order, found.group_number, found.id))

    def find(self, place: RolloutPlace) -> ListedRollout:
        """The rollout at a place.

        Raises:
            DataError: If there is none.
        """
        for file in self._by_number:
            if file.run == place.run and self.file_name(file.number) == place.file:
                for row in self._rows("file = ? AND line = ?", file.number, place.line):
                    return row
        raise DataError(
            f"{place.file} has no rollout at line {place.line}: it has not been read yet, or its step was sampled again"
        )

    def row_place(self, found: ListedRollout) -> RowPlace:
        """Place of a rollout's lines in its dump."""
        return RowPlace(found.id, self.dump(found.file).path, found.row.byte_offset, found.row.num_bytes)

    def count(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """[num_rows] rows that answer a query of this package over the table `rollouts`.

        Raises:
            DataError: If that takes longer, or more memory, than the table allows.
        """
        found = self._table.count(query, *values)
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def facets(self) -> dict[str, list[JsonObject]]:
        """{column: its most frequent values, each with its `count`}, for filters."""
        return {
            name: [
                {"value": value, "count": number}
                for value, number in self.count(
                    f"SELECT {name}, count(*) FROM rollouts WHERE {name} <> '' "
                    f"GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {_MAX_VALUES}"
                )
            ]
            for name in _FACETS
        }

    def steps(self) -> list[int]:
        """[num_steps] steps that have rollouts."""
        return [step for (step,) in self.count("SELECT DISTINCT step FROM rollouts WHERE step IS NOT NULL ORDER BY 1")]

    @property
    def num_rollouts(self) -> int:
        return int(self.count("SELECT count(*) FROM rollouts")[0][0])

    def dump(self, file: int) -> DumpFile:
        """The dump with a number of the column `file`."""
        return self._by_number[file].dump

    def file_name(self, file: int) -> str:
        followed = self._by_number[file]
        folder = self.runs[followed.run].folder
        path = followed.dump.path
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

    def _rows(self, where: str, *values: Any) -> list[ListedRollout]:
        found = self._table.ask(f"SELECT * FROM rollouts WHERE {where}", *values)
        rows = []
        for number, run, part, file, group, *row in zip(*found.to_pydict().values(), strict=True):
            rows.append(ListedRollout(number, run, part, file, self.file_name(file), group, RolloutRow(*row)))
        return rows
