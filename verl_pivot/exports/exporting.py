"""Export of pivots.parquet or trajectories.jsonl -> a file for NeMo Gym, for verl, or plain JSON lines."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import pyarrow

from verl_pivot.data.files import RawRow, read_rows, replacing
from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.data.pivots import SCHEMA, row_to_turn, writing_pivots
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.data.trajectories import parse_trajectory, trajectory_as_dict
from verl_pivot.data.turns import turns
from verl_pivot.errors import DataError
from verl_pivot.exports.nemo_gym_rows import ReferenceScores, lost_fields, turn_to_nemo_gym
from verl_pivot.exports.trajectory_rows import openai_row, write_sft
from verl_pivot.formats.pivots import is_pivot, with_json_strings, with_nested_values
from verl_pivot.profiling.profiles import TurnKey, file_sha256, iter_profiles, profiled_sha256
from verl_pivot.types import JsonObject, Trajectory, Turn

_ROWS_AT_ONCE = 256


@dataclass(slots=True, kw_only=True)
class ExportReport:
    """Counts of written rows, and of content that readers of the file cannot see; some counts are for NeMo Gym only."""

    num_written: int = 0
    """Rows of the file."""
    num_failed: int = 0
    """Trajectories with a failed outcome; they are written as well."""
    lost_fields: Counter[str] = field(default_factory=Counter)
    """{name of a field: number of rows that hold it only in our own column, which NeMo Gym does not read}."""
    num_batches: int = 0
    """Rows whose expert makes several calls at once."""
    num_without_schema: int = 0
    """Rows whose expert calls a tool that no schema describes."""
    num_without_profile: int = 0
    """Rows of turns that the given profile does not hold."""


def export_nemo_gym(
    rows: Iterable[RawRow],
    out: Path,
    *,
    agent: str | None = None,
    scores: Mapping[TurnKey, tuple[float, ...]] | None = None,
) -> ExportReport:
    """Write a row of NeMo Gym's pivot environments for each pivot, or for each turn of each trajectory.

    Args:
        rows: Rows of pivots.parquet, of its export to JSON lines, or of trajectories.jsonl.
        out: File to write, completely or not at all.
        agent: Name in `agent_ref`; None takes the one that a row was imported with, else the most similar to its
            verifier.
        scores: Scores from `read_scores`; None writes only the pass rate of a pivot.

    Raises:
        DataError: If a row is neither a pivot nor a trajectory, or the scores belong to other turns.
        ConfigError: If the output cannot be written.
    """
    report = ExportReport()
    with replacing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows:
            with _naming(row):
                for turn, pass_rate, passed in _turns_of(row.decoded(), report):
                    reference = _reference(turn, pass_rate, scores, report)
                    line = turn_to_nemo_gym(turn, agent=agent, reference=reference, passed=passed)
                    file.write(encode_json(line) + "\n")
                    _count(turn, line, report)
    return report


def export_jsonl(rows: Iterable[RawRow], out: Path) -> ExportReport:
    """Write pivots with nested data as JSON values, and trajectories with messages in OpenAI's form.

    Raises:
        DataError: If a row is neither a pivot nor a trajectory.
        ConfigError: If the output cannot be written.
    """
    report = ExportReport()
    with replacing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows:
            with _naming(row):
                columns = row.decoded()
                if is_pivot(columns):
                    row_to_turn(with_json_strings(columns))
                    line = with_nested_values(columns)
                else:
                    line = openai_row(_parsed(columns, report))
                file.write(encode_json(line) + "\n")
                report.num_written += 1
    return report


def export_verl(rows: Iterable[RawRow], out: Path) -> ExportReport:
    """Write parquet for verl: pivots with the columns of pivots.parquet, trajectories with those of `sft_row`.

    Raises:
        DataError: If a row is neither a pivot nor a trajectory, or the file holds both.
        ConfigError: If the output cannot be written.
    """
    report = ExportReport()
    rows = iter(rows)
    first = next(rows)
    with _naming(first):
        write = _write_pivots if is_pivot(first.decoded()) else _write_trajectories
    with replacing(out) as temporary:
        write(chain([first], rows), temporary, report)
    return report


def read_scores(profile: Path, source: Path) -> dict[TurnKey, tuple[float, ...]]:
    """Scores of the decided samples in a profile, as {turn: [num_samples] scores}.

    Args:
        profile: Profile of the turns in `source`.
        source: File of pivots or trajectories that is exported.

    Raises:
        DataError: If the profile cannot be read, or was measured on other trajectories.
    """
    if not _holds_pivots(source) and profiled_sha256(profile) != file_sha256(source):
        raise DataError(
            f"{profile} was not measured on the present content of {source}; leave --profile out, or give the profile "
            "of that file"
        )
    return {TurnKey(found.trajectory_id, found.index): found.scores for found in iter_profiles(profile)}


def _holds_pivots(path: Path) -> bool:
    first = next(read_rows(path))
    with _naming(first):
        return is_pivot(first.decoded())


@contextmanager
def _naming(row: RawRow) -> Iterator[None]:
    """Name the row in the message of an error that the block raises."""
    try:
        yield
    except ValueError as error:  # a DataError, or the error of a Turn that no conversation can hold
        raise DataError(
            f"{row.place} cannot be exported ({error}); give a file from `verl-pivot select` or `verl-pivot import`"
        ) from error


class _TurnToExport(NamedTuple):
    turn: Turn
    pass_rate: float | None
    """Pass rate of a pivot; None for turns of a trajectory."""
    passed: bool | None
    """Outcome of a trajectory; None for pivots."""


def _turns_of(columns: JsonObject, report: ExportReport) -> Iterator[_TurnToExport]:
    if is_pivot(columns):
        rate = columns.get("pass_rate")
        yield _TurnToExport(row_to_turn(with_json_strings(columns)), rate if isinstance(rate, float) else None, None)
        return
    trajectory = _parsed(columns, report)
    for turn in turns(trajectory):
        yield _TurnToExport(turn, None, trajectory.passed)


def _parsed(columns: JsonObject, report: ExportReport) -> Trajectory:
    trajectory = parse_trajectory(columns)
    report.num_failed += trajectory.passed is False
    return trajectory


def _reference(
    turn: Turn, pass_rate: float | None, scores: Mapping[TurnKey, tuple[float, ...]] | None, report: ExportReport
) -> ReferenceScores:
    if scores is None:
        return ReferenceScores(pass_rate=pass_rate)
    found = scores.get(TurnKey(turn.trajectory_id, turn.index))
    report.num_without_profile += found is None
    if found and pass_rate is not None and not math.isclose(pass_rate, measured := found.count(1.0) / len(found)):
        raise DataError(
            f"turn {turn.id} has a pass rate of {pass_rate} here and of {measured} in the profile; give the profile "
            "that the pivots were selected with"
        )
    return ReferenceScores(scores=found or (), pass_rate=pass_rate)


def _count(turn: Turn, row: JsonObject, report: ExportReport) -> None:
    called = {call.name for call in turn.expert.tool_calls}
    report.num_written += 1
    report.num_batches += len(turn.expert.tool_calls) > 1
    report.num_without_schema += not called <= {name_of(tool) for tool in turn.tools}
    report.lost_fields.update(lost_fields(row))


def _write_pivots(rows: Iterable[RawRow], path: Path, report: ExportReport) -> None:
    columns = (_pivot_columns(row) for row in rows)
    with writing_pivots(path) as pivots:
        while group := list(islice(columns, _ROWS_AT_ONCE)):
            pivots.append(pyarrow.Table.from_pylist(group, schema=SCHEMA))
            report.num_written += len(group)


def _pivot_columns(row: RawRow) -> JsonObject:
    with _naming(row):
        columns = with_json_strings(row.decoded())
        row_to_turn(columns)
        if missing := [column.name for column in SCHEMA if not column.nullable and columns.get(column.name) is None]:
            raise BadRowError("no_pivot", f"the row lacks {', '.join(missing)}")
        _check_types(columns)
    return columns


def _check_types(columns: JsonObject) -> None:
    """Refuse a row with a value that does not fit its column of pivots.parquet."""
    for column in SCHEMA:
        value = columns.get(column.name)
        try:
            pyarrow.scalar(value, type=column.type)
        except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
            raise BadRowError(
                "no_pivot", f"{column.name} must be of the type {column.type}, got {value!r:.80}"
            ) from error


def _write_trajectories(rows: Iterable[RawRow], path: Path, report: ExportReport) -> None:
    def trajectories() -> Iterator[Trajectory]:
        for row in rows:
            with _naming(row):
                trajectory = _parsed(row.decoded(), report)
                encode_json(trajectory_as_dict(trajectory))  # raises for half of a surrogate pair
            yield trajectory
            report.num_written += 1

    write_sft(trajectories(), path)
