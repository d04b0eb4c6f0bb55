"""Files of trajectories -> trajectories.jsonl in the normal form, and a reason for each row that is not in it."""

import json
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

from verl_pivot.data.journal import Journal, input_identity, open_journal
from verl_pivot.data.parallel import map_in_order
from verl_pivot.data.storage import BadRowError, Place, RawRow, encode_json, in_chunks, read_rows
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.data.turns import turns
from verl_pivot.errors import DataError
from verl_pivot.formats.rows import ImportOptions, parse_row
from verl_pivot.loading import load_modules
from verl_pivot.types import JsonObject

T = TypeVar("T")

_CHUNKS_PER_COMMIT = 16
_KEPT = "trajectories.jsonl"
_REJECTED = "rejected.jsonl"


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
    passed: bool | None
    format: str
    num_merged: int
    calls_without_tools: bool
    ignored_columns: frozenset[str]


class RejectedRow(NamedTuple):
    reason: str
    detail: str


def import_files(
    files: Sequence[Path],
    out: Path,
    options: ImportOptions,
    *,
    workers: int = 1,
    on_rows: Callable[[int], object] = lambda num_rows: None,
) -> ImportReport:
    """Write the good rows to `out` and the bad ones, with place and reason, to `<out>.rejected.jsonl`.

    An import that was interrupted goes on where it was, and the bytes at its end are the same.

    Args:
        files: Read in this order.
        out: Written whole or not at all.
        options: How to read rows that do not say it themselves.
        workers: Processes that read rows.
        on_rows: Told of rows that are done, those of an interrupted run included.

    Raises:
        DataError: If no row is left, or an input cannot be read; the rejected rows are written all the same.
        ConfigError: If an output cannot be written.
    """
    settings: JsonObject = {"files": [input_identity(path) for path in files], "options": asdict(options)}
    outputs = {_KEPT: out, _REJECTED: rejected_path(out)}
    with open_journal(out, settings) as journal:
        report = ImportReport.parse(journal.state)
        try:
            if not journal.is_finished:
                rows = (row for path in files for row in read_rows(path))
                _import_rows(rows, journal, report, options, workers, on_rows)
            if not report.num_kept:
                raise _nothing_left(report, out)
        except DataError:
            journal.finish({_REJECTED: outputs[_REJECTED]})
            raise
        journal.finish(outputs)
    return report


def rejected_path(out: Path) -> Path:
    """Where the bad rows of an import to `out` go."""
    return out.with_name(f"{out.name}.rejected.jsonl")


def _import_rows(
    rows: Iterator[RawRow],
    journal: Journal,
    report: ImportReport,
    options: ImportOptions,
    workers: int,
    on_rows: Callable[[int], object],
) -> None:
    on_rows(report.num_rows)
    sink = _Sink(journal, options, report)
    sent: deque[tuple[RawRow, ...]] = deque()
    chunks = _noting(in_chunks(islice(rows, report.num_rows, None)), sent)
    load = partial(load_modules, options.format_modules, "format")
    imported = map_in_order(partial(_read_chunk, options), chunks, workers=workers, prepare=load)
    for number, results in enumerate(imported, start=1):
        for row, result in zip(sent.popleft(), results, strict=True):
            sink.add(row, result)
        on_rows(len(results))
        if number % _CHUNKS_PER_COMMIT == 0:
            journal.commit(report.as_dict())
    journal.commit(report.as_dict())


def _noting(chunks: Iterable[T], sent: deque[T]) -> Iterator[T]:
    """The chunks, which are also put into `sent`."""
    for chunk in chunks:
        sent.append(chunk)
        yield chunk


def _read_chunk(options: ImportOptions, rows: Sequence[RawRow]) -> list[AcceptedRow | RejectedRow]:
    return [_read_row(row, options) for row in rows]


def _read_row(row: RawRow, options: ImportOptions) -> AcceptedRow | RejectedRow:
    try:
        parsed = parse_row(row, options)
        line = encode_json(trajectory_as_dict(parsed.trajectory))
    except BadRowError as error:
        return RejectedRow(error.reason, str(error))
    trajectory = parsed.trajectory
    indices = [turn.index for turn in turns(trajectory)]
    return AcceptedRow(
        line=line,
        trajectory_id=trajectory.id,
        first_turn=indices[0],
        num_turns=len(indices),
        passed=trajectory.passed,
        format=parsed.format,
        num_merged=parsed.num_merged,
        calls_without_tools=not trajectory.tools and any(message.tool_calls for message in trajectory.messages),
        ignored_columns=parsed.ignored_columns,
    )


class _Sink:
    """Takes rows in the order of the input: refuses turns that were there before, counts, and writes."""

    def __init__(self, journal: Journal, options: ImportOptions, report: ImportReport) -> None:
        self._report = report
        self._keeps_all = options.outcome == "all"
        self._known = _KnownTurns(journal.database)
        self._kept: BinaryIO = journal.append_to(_KEPT)
        self._rejected: BinaryIO = journal.append_to(_REJECTED)

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


def _nothing_left(report: ImportReport, out: Path) -> DataError:
    why = f"{report.num_not_passed} of {report.num_rows} rows have a failed outcome (--outcome all keeps them)"
    if report.rejected:
        reason, count = report.rejected.most_common(1)[0]
        why += f" and {report.rejected.total()} were rejected, {count} for {reason} ({report.examples[reason]}); "
        why += f"all are in {rejected_path(out)}"
    return DataError(f"no usable trajectory: {why}")
