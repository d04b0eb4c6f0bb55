"""Folders of dumps -> the decided rollouts in them, from which the studies compute their measures."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from verl_pivot.data.rollout_dumps import FOLDER, DumpedRollout, read_rollouts
from verl_pivot.data.rollout_records import RolloutRecord


class Decided(NamedTuple):
    """A rollout whose score counts: neither the system nor the verifier left it undecided."""

    row: DumpedRollout
    record: RolloutRecord
    score: float


def decided(path: Path) -> Iterator[Decided]:
    """The decided rollouts of a dump, one for each trajectory, in order of the lines."""
    for row in read_rollouts(path):
        if row.score is not None and row.record is not None and not row.record.is_masked:
            yield Decided(row, row.record, row.score)


def step_dumps(folder: Path) -> dict[int, Path]:
    """{step: its dump} of `trainer.rollout_data_dir` or `trainer.validation_data_dir`, in order of the steps."""
    paths = {int(path.stem): path for path in (folder / FOLDER).glob("*.jsonl")}
    return dict(sorted(paths.items()))
