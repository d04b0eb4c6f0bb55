"""Files of trajectories -> trajectories.jsonl in the normal form, and a reason for each row that is not in it."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from verl_pivot.data.storage import BadRowError, Place, RawRow, encode_json, replacing
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.data.turns import turns
from verl_pivot.errors import DataError
from verl_pivot.formats.rows import ImportOptions, ParsedRow, parse_row
from verl_pivot.types import Trajectory


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
    rejected: Counter[str] = field(default_factory=Counter)
    """[reason] rows."""
    examples: dict[str, str] = field(default_factory=dict)
    """[reason] the first place and what is wrong there."""
    num_merged_turns: int = 0
    """Assistant text followed by the same turn's calls in a message of their own, joined."""
    num_calls_without_tools: int = 0
    """Kept trajectories whose expert calls tools that no schema describes."""
    ignored_columns: set[str] = field(default_factory=set)


def import_rows(rows: Iterable[RawRow], out: Path, options: ImportOptions) -> ImportReport:
    """Write the good rows to `out` and the bad ones, with place and reason, to `<out>.rejected.jsonl`.

    Raises:
        DataError: If no row is left, or an input cannot be read; the rejected rows are written all the same.
        ConfigError: If an output cannot be written.
    """
    report, stopped = ImportReport(), None
    with replacing(rejected_path(out)) as temporary, temporary.open("w", encoding="utf-8") as rejected:
        try:
            with replacing(out) as temporary_out, temporary_out.open("w", encoding="utf-8") as kept:
                _sort_rows(rows, options, report, kept, rejected)
                _require_some(report, out)
        except DataError as error:
            stopped = error
    if not report.rejected:
        rejected_path(out).unlink()
    if stopped is not None:
        raise stopped
    return report


def rejected_path(out: Path) -> Path:
    """Where the bad rows of an import to `out` go."""
    return out.with_name(f"{out.name}.rejected.jsonl")


def _sort_rows(
    rows: Iterable[RawRow], options: ImportOptions, report: ImportReport, kept: TextIO, rejected: TextIO
) -> None:
    places: dict[str, Place] = {}
    for row in rows:
        report.num_rows += 1
        try:
            parsed = parse_row(row, options)
            line = encode_json(trajectory_as_dict(parsed.trajectory))
            _refuse_double(parsed.trajectory, row.place, places)
        except BadRowError as error:
            _count_rejected(report, row.place, error)
            rejected.write(_rejected_line(row, error) + "\n")
            continue
        if parsed.trajectory.passed is False and options.outcome == "passed":
            report.num_not_passed += 1
        else:
            kept.write(line + "\n")
            _count_kept(report, parsed)


def _refuse_double(trajectory: Trajectory, place: Place, places: dict[str, Place]) -> None:
    """Rows that give one action each may share a trajectory, but not a turn of it."""
    ids = [turn.id for turn in turns(trajectory)]
    for turn_id in ids:
        if turn_id in places:
            raise BadRowError(
                "duplicate_id",
                f"turn {turn_id} (trajectory:turn) is in {places[turn_id]} already; give each row an id of its own",
            )
    places.update(dict.fromkeys(ids, place))


def _count_rejected(report: ImportReport, place: Place, error: BadRowError) -> None:
    report.rejected[error.reason] += 1
    report.examples.setdefault(error.reason, f"{place}: {error}")


def _count_kept(report: ImportReport, parsed: ParsedRow) -> None:
    trajectory = parsed.trajectory
    calls_tools = any(message.tool_calls for message in trajectory.messages)
    report.num_kept += 1
    report.num_turns += len(turns(trajectory))
    report.num_unknown_outcome += trajectory.passed is None
    report.num_merged_turns += parsed.num_merged
    report.num_calls_without_tools += calls_tools and not trajectory.tools
    report.ignored_columns |= parsed.ignored_columns


def _rejected_line(row: RawRow, error: BadRowError) -> str:
    """Plain ASCII JSON, so that whatever was wrong with the text of the row can be written."""
    raw = row.raw.decode(errors="backslashreplace") if isinstance(row.raw, bytes) else row.raw
    place = {"file": row.place.file, row.place.unit: row.place.number}
    return json.dumps({**place, "reason": error.reason, "detail": str(error), "raw": raw}, default=repr)


def _require_some(report: ImportReport, out: Path) -> None:
    if report.num_kept:
        return
    why = f"{report.num_not_passed} of {report.num_rows} rows have a failed outcome (--outcome all keeps them)"
    if report.rejected:
        reason, count = report.rejected.most_common(1)[0]
        why += f" and {report.rejected.total()} were rejected, {count} for {reason} ({report.examples[reason]}); "
        why += f"all are in {rejected_path(out)}"
    raise DataError(f"no usable trajectory: {why}")
