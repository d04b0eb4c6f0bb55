"""Rows that were read -> trajectories.jsonl, the rejected rows, the published scores, and a count of everything."""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
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
"""Names of the unfinished files."""
_DIGEST_TO_COME = "0" * 64


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """What became of every row: rows = kept + not passed + rejected."""

    num_rows: int = 0
    num_kept: int = 0
    num_turns: int = 0
    """Pivot candidates in the kept trajectories."""
    num_not_passed: int = 0
    num_unknown_outcome: int = 0
    """Kept, though nothing says that the expert was right."""
    formats: Counter[str] = field(default_factory=Counter)
    """[name of a format] rows that were read as it."""
    rejected: Counter[str] = field(default_factory=Counter)
    """[reason] rows."""
    examples: dict[str, str] = field(default_factory=dict)
    """[reason] the first place and what is wrong there."""
    num_published: int = 0
    """Kept turns that came with scores of a published policy."""
    num_merged_turns: int = 0
    """Assistant text followed by the same turn's calls in a message of their own, joined."""
    num_calls_without_tools: int = 0
    """Kept trajectories whose expert calls tools that no schema describes."""
    ignored_columns: set[str] = field(default_factory=set)

    def as_dict(self) -> JsonObject:
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "ignored_columns": sorted(self.ignored_columns),
        }

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`; of nothing, a report without a row."""
        report = cls(**{name: values[name] for name in cls.__slots__ if name in values})
        report.formats, report.rejected = Counter(report.formats), Counter(report.rejected)
        report.ignored_columns = set(report.ignored_columns)
        return report


class AcceptedRow(NamedTuple):
    """A row in the normal form, and what the report counts of it."""

    line: str
    trajectory_id: str
    first_turn: int
    num_turns: int
    profile_line: str | None
    """Line of the profile made of published scores; None without any."""
    passed: bool | None
    format: str
    num_merged: int
    calls_without_tools: bool
    ignored_columns: frozenset[str]


class RejectedRow(NamedTuple):
    reason: str
    detail: str


class ImportSink:
    """Takes rows in the order of the input: refuses turns that were there before, counts, and writes."""

    def __init__(self, journal: Journal, options: ImportOptions, report: ImportReport) -> None:
        self._report = report
        self._keeps_all = options.outcome == "all"
        self._known = _KnownTurns(journal.database)
        self._kept: BinaryIO = journal.append_to(KEPT)
        self._rejected: BinaryIO = journal.append_to(REJECTED)
        self._profile: BinaryIO = journal.append_to(PROFILE)

    def add(self, row: RawRow, result: AcceptedRow | RejectedRow) -> None:
        self._report.num_rows += 1
        if isinstance(result, AcceptedRow):
            result = self._known.add(row.place, result) or result
        if isinstance(result, RejectedRow):
            self._reject(row, result)
        else:
            self._accept(result)

    def _reject(self, row: RawRow, result: RejectedRow) -> None:
        """Plain ASCII JSON, so that whatever was wrong with the text of the row can be written."""
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
                self._profile.write(published_profile_header(_DIGEST_TO_COME).encode() + b"\n")
            self._profile.write(result.profile_line.encode() + b"\n")
            report.num_published += 1
        report.num_kept += 1
        report.num_turns += result.num_turns
        report.num_unknown_outcome += result.passed is None
        report.num_merged_turns += result.num_merged
        report.num_calls_without_tools += result.calls_without_tools
        report.ignored_columns |= result.ignored_columns


class _KnownTurns:
    """Which turns of which trajectory were read; rows of one action each may share a trajectory, but not a turn."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "create table if not exists turns (trajectory_id text, first integer, past integer, place text, "
            "primary key (trajectory_id, first)) without rowid"
        )

    def add(self, place: Place, row: AcceptedRow) -> RejectedRow | None:
        """None, or that one of its turns was there before."""
        first, past = row.first_turn, row.first_turn + row.num_turns
        twin = self._database.execute(
            "select max(first, ?), place from turns where trajectory_id = ? and first < ? and past > ?",
            (first, row.trajectory_id, past, first),
        ).fetchone()
        if twin is None:
            self._database.execute(
                "insert into turns values (?, ?, ?, ?)", (row.trajectory_id, first, past, str(place))
            )
            return None
        return RejectedRow(
            "duplicate_id",
            f"turn {row.trajectory_id}:{twin[0]} (trajectory:turn) is in {twin[1]} already; "
            "give each row an id of its own",
        )
