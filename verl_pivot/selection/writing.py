"""Kept candidates in their order -> rows of pivots.parquet, made by several processes."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow

from verl_pivot.data.files import RawRow
from verl_pivot.data.parallel import map_in_order
from verl_pivot.data.pivots import SCHEMA, PivotNumbers, pivot_rows, writing_pivots
from verl_pivot.data.trajectories import read_trajectory
from verl_pivot.extras import extra
from verl_pivot.selection.candidates import NumberedRows

with extra("data"):
    import duckdb


_KEPT = """
select row, turn_index, split, pass_rate, reward_mean, reward_std, reward_var, num_prompt_tokens
from decisions where decision = 'kept' order by row, turn_index
"""
_ROWS_PER_FETCH = 4096


class KeptTurns(NamedTuple):
    """One trajectory, and the numbers of its kept turns."""

    row: RawRow
    numbers: dict[int, PivotNumbers]
    """Numbers of each kept turn, by turn index."""


class SplitTables(NamedTuple):
    """Rows of pivots.parquet, by split."""

    train: pyarrow.Table
    validation: pyarrow.Table


def write_pivots(
    database: duckdb.DuckDBPyConnection,
    chunks: Iterable[NumberedRows],
    train: Path,
    validation: Path,
    *,
    workers: int,
    with_recordings: bool,
    sampling: str | None,
    on_rows: Callable[[int], object],
) -> None:
    """Write the kept turns of both splits.

    Args:
        database: Database with the table `decisions`.
        chunks: Rows of the trajectories file, numbered as in the table of candidates.
        train: File of the training split.
        validation: File of the validation split, which is written even if it has no row.
        workers: Number of processes that make rows.
        with_recordings: Whether rows hold the recorded calls and results of their trajectory.
        sampling: SamplingRecord of the profile, encoded, for every row; None without one.
        on_rows: Called with the number of rows written since the last call.
    """
    work = _with_numbers(chunks, _kept(database))
    with writing_pivots(train) as train_rows, writing_pivots(validation) as validation_rows:
        for tables in map_in_order(partial(split_tables, with_recordings, sampling), work, workers=workers):
            train_rows.append(tables.train)
            validation_rows.append(tables.validation)
            on_rows(tables.train.num_rows + tables.validation.num_rows)


def split_tables(with_recordings: bool, sampling: str | None, kept: tuple[KeptTurns, ...]) -> SplitTables:
    """Rows of the kept turns of a chunk of trajectories, by split."""
    rows = [
        row
        for each in kept
        for row in pivot_rows(
            read_trajectory(each.row), each.numbers, with_recording=with_recordings, sampling=sampling
        )
    ]
    train, validation = (
        pyarrow.Table.from_pylist([row for row in rows if row["split"] == split], schema=SCHEMA)
        for split in ("train", "validation")
    )
    return SplitTables(train, validation)


def _kept(database: duckdb.DuckDBPyConnection) -> Iterator[tuple[int, dict[int, PivotNumbers]]]:
    """(position of the trajectory in its file, numbers of its kept turns) in the order of the file."""
    cursor = database.cursor().execute(_KEPT)
    fetched = (values for batch in iter(lambda: cursor.fetchmany(_ROWS_PER_FETCH), []) for values in batch)
    for row, turns in groupby(fetched, key=lambda values: values[0]):
        yield row, {index: PivotNumbers(*numbers) for _, index, *numbers in turns}


def _with_numbers(
    chunks: Iterable[NumberedRows], kept: Iterator[tuple[int, dict[int, PivotNumbers]]]
) -> Iterator[tuple[KeptTurns, ...]]:
    number, numbers = next(kept, (-1, {}))
    for chunk in chunks:
        found = []
        for position, row in enumerate(chunk.rows, start=chunk.first):
            if position == number:
                found.append(KeptTurns(row, numbers))
                number, numbers = next(kept, (-1, {}))
        if found:
            yield tuple(found)
