"""Dumps of a training and of its evaluations -> tokens of each step, and successes at each evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from examples.dumps import step_dumps
from examples.success import Played, read_dump
from verl_pivot.data.rollout_dumps import read_rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """Tokens and scores of the rollouts of one training step."""

    step: int
    kept: int
    """Tokens that the policy sampled in the rollouts of the step."""
    sampled: int
    """The same, plus the tokens of candidates that a search left out."""
    mean_score: float
    """Mean score of the rollouts that were decided."""


def read_steps(folder: Path) -> list[StepTokens]:
    """One entry for each dump of `trainer.rollout_data_dir`, in order of the steps."""
    return [_read_step(step, path) for step, path in step_dumps(folder).items()]


def read_evaluations(folder: Path) -> dict[int, list[Played]]:
    """{step: trajectories on the held-out tasks} of `trainer.validation_data_dir`, in order of the steps."""
    return {step: read_dump(path) for step, path in step_dumps(folder).items()}


def sampled_until(steps: Sequence[StepTokens], step: int) -> int:
    """Tokens that were sampled in all training steps up to this one."""
    return sum(each.sampled for each in steps if each.step <= step)


def _read_step(step: int, path: Path) -> StepTokens:
    rows = [row for row in read_rollouts(path) if row.record is not None]
    records = [row.record for row in rows if row.record is not None]
    kept = sum(sum(record.turn_tokens) for record in records)
    left_out = sum(record.search.extra_tokens for record in records if record.search is not None)
    return StepTokens(
        step=step,
        kept=kept,
        sampled=kept + left_out,
        mean_score=fmean(row.score for row in rows if row.score is not None),
    )
