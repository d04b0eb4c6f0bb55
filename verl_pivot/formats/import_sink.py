"""Results of reading rows -> files of trajectories, rejected rows and published scores, and the report of an import."""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, Self

from verl_pivot.data.files import Place, RawRow
from verl_pivot.data.journal import Journal
from verl_pivot.formats.row_import import ImportOptions
from verl_pivot.profiling.published import published_profile_header
from verl_pivot.types import JsonObject

KEPT = "trajectories.jsonl"
REJECTED = "rejected.jsonl"
PROFILE = "profile.jsonl"
"""Names of the three files inside the journal; `Journal.finish` moves them to their final paths."""
_PLACEHOLDER_DIGEST = "0" * 64


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """Counts of an import: num_rows = num_kept + num_not_passed + rows in `rejected`."""

    num_rows: int = 0
    num_kept: int = 0
    num_turns: int = 0
    """Pivot candidates in the kept trajectories."""
    num_not_passed: int = 0
    """Trajectories with a failed outcome that were left out."""
    num_unknown_outcome: int = 0
    """Kept trajectories whose rows do not say whether the outcome was right."""
    formats: Counter[str] = field(default_factory=Counter)
    """{name of a format: number of rows that were read in it}."""
    rejected: Counter[str] = field(default_factory=Counter)
    """{reason: number of rejected rows}."""
    examples: dict[str, str] = field(default_factory=dict)
    """{reason: place of the first rejected row, and what is wrong there}."""
    num_published: int = 0
    """Kept turns that came with published scores of a reference policy."""
    num_merged_turns: int = 0
    """Messages with calls that were joined to the text before them, since both belong to one assistant turn."""
    num_message_turns: int = 0
    """Pivot candidates at which the expert writes a message, and the verifier accepts any text."""
    num_calls_without_tools: int = 0
    """Kept trajectories whose expert calls tools although the trajectory has no schemas."""
    ignored_columns: set[str] = field(default_factory=set)
    """Columns of kept rows that were not read."""

    def as_dict(self) -> JsonObject:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "ignored_columns": sorted(self.ignored_columns),
        }

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`; an empty mapping gives a report without rows."""
        report = cls(**{name: values[name] for name in cls.__slots__ if name in values})
        report.formats, report.rejected = Counter(report.formats), Counter(report.rejected)
        report.ignored_columns = set(report.ignored_columns)
        return report


class AcceptedRow(NamedTuple):
    """A row in the normal form, with the numbers that the report counts."""

    line: str
    """Line of trajectories.jsonl."""
    trajectory_id: str
    turns: tuple[int, ...]
    """Indices of the pivot candidates of the row, ascending."""
    profile_line: str | None
    """Line of the profile of published scores; None if the row has none."""
    passed: bool | None
    format: str
    num_merged: int
    num_message_turns: int
    calls_without_tools: bool
    ignored_columns: frozenset[str]


class RejectedRow(NamedTuple):
    """Why a row was rejected."""

    reason: str
    """Short code in snake_case."""
    detail: str
    """Explanation for people."""


class ImportSink:
    """Writes and counts rows in the order of the input, and rejects turns that an earlier row holds already."""

    def __init__(self, journal: Journal, options: ImportOptions, report: ImportReport) -> None:
        self._report = report
        self._keeps_all = options.outcome == "all"
        self._known = _KnownTurns(journal.database)
        self._kept: BinaryIO = journal.append_to(KEPT)
        self._rejected: BinaryIO = journal.append_to(REJECTED)
        self._profile: BinaryIO = journal.append_to(PROFILE)

    def add(self, row: RawRow, result: AcceptedRow | RejectedRow) -> None:
        """Write and count one row with the result of reading it."""
        self._report.num_rows += 1
        if isinstance(result, AcceptedRow):
            result = self._known.add(row.place, result) or result
        if isinstance(result, RejectedRow):
            self._reject(row, result)
        else:
            self._accept(result)

    def _reject(self, row: RawRow, result: RejectedRow) -> None:
        """Write the row as ASCII JSON, which can hold any text, also text that UTF-8 cannot encode."""
        self._report.rejected[result.reason] += 1
        self._report.examples.setdefault(result.reason, f"{row.place}: {result.detail}")
        raw = row.raw.decode(errors="backslashreplace") if isinstance(row.raw, bytes) else row.raw
        place = {"file": row.place.file, row.place.unit: row.place.number}
        line = json.dumps({**place, "reason": result.reason, "detail": result.detail, "raw": raw}, default=repr)
        self._rejected.write(line.encode() + b"\n")

    def _accept(self, result: AcceptedRow) -> None:
        report = self._report
        report.formats[result.format] += 1
        if result.passed is False and not self._keeps_all:
            report.num_not_passed += 1
            return
        self._kept.write(result.line.encode() + b"\n")
        if result.profile_line is not None:
            if not report.num_published:
                self._profile.write(published_profile_header(_PLACEHOLDER_DIGEST).encode() + b"\n")
            self._profile.write(result.profile_line.encode() + b"\n")
            report.num_published += 1
        report.num_kept += 1
        report.num_turns += len(result.turns)
        report.num_unknown_outcome += result.passed is None
        report.num_merged_turns += result.num_merged
        report.num_message_turns += result.num_message_turns
        report.num_calls_without_tools += result.calls_without_tools
        report.ignored_columns |= result.ignored_columns


class _KnownTurns:
    """Turns that were read so far. Rows with one action each may share a trajectory, but no two rows share a turn."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "create table if not exists turns (trajectory_id text, first integer, past integer, place text, "
            "primary key (trajectory_id, first)) without rowid"
        )

    def add(self, place: Place, row: AcceptedRow) -> RejectedRow | None:
        """Remember the row's turns; return a rejection instead if an earlier row holds one of them."""
        runs = _runs(row.turns)
        for first, past in runs:
            twin = self._database.execute(
                "select max(first, ?), place from turns where trajectory_id = ? and first < ? and past > ?",
                (first, row.trajectory_id, past, first),
            ).fetchone()
            if twin is not None:
                return RejectedRow(
                    "duplicate_id",
                    f"turn {row.trajectory_id}:{twin[0]} (trajectory:turn) is in {twin[1]} already; "
                    "give each trajectory an id of its own",
                )
        self._database.executemany(
            "insert into turns values (?, ?, ?, ?)",
            [(row.trajectory_id, first, past, str(place)) for first, past in runs],
        )
        return None


def _runs(turns: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive turns, as the first index and the one after the last: [0, 1, 3] -> [(0, 2), (3, 4)]."""
    runs: list[tuple[int, int]] = []
    for index in turns:
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs
