"""Units that were evaluated while they trained -> groups of seeds, curves, and which held-out rows are undecided."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Generic, TypeVar

from examples.comparison import TrainedUnitT
from verl_pivot.data.rollout_dumps import read_rollouts

PlayedT = TypeVar("PlayedT")


@dataclass(frozen=True, kw_only=True)
class EvaluatedResult(Generic[PlayedT]):
    """Results of one unit, which is one arm with one seed."""

    arm: str
    seed: int
    evaluations: Mapping[int, Sequence[PlayedT]]
    """{step: trajectories on the held-out rows}"""
    training: Mapping[int, Sequence[PlayedT]]
    """{step: trajectories}; empty for the base policy."""

    @property
    def held_out(self) -> Sequence[PlayedT]:
        """Trajectories of the trained policy on the held-out rows."""
        return self.evaluations[max(self.evaluations)]


def grouped(results: Iterable[TrainedUnitT], arms: Iterable[str]) -> list[tuple[TrainedUnitT, ...]]:
    """A group for each unit, in the order of arms, followed by a group of all units of an arm with several seeds."""
    units = list(results)
    groups: list[tuple[TrainedUnitT, ...]] = []
    for arm in arms:
        of_arm = tuple(each for each in units if each.arm == arm)
        groups += [(each,) for each in of_arm]
        if len(of_arm) > 1:
            groups.append(of_arm)
    return groups


def curve(group: Sequence[EvaluatedResult[PlayedT]], measure: Callable[[Sequence[PlayedT]], float]) -> dict[int, float]:
    """{step: mean of the measure over the seeds} at the evaluations that all seeds have."""
    shared = sorted(set.intersection(*(set(each.evaluations) for each in group)))
    return {step: fmean(measure(each.evaluations[step]) for each in group) for step in shared}


EARLIER = "{}, two thirds of its steps"
"""Name of an arm as it was at its last evaluation within two thirds of its steps."""


def earlier(result: EvaluatedResult[PlayedT]) -> EvaluatedResult[PlayedT] | None:
    """A unit at its last evaluation within two thirds of its steps; None if there is none."""
    last = max(result.evaluations)
    evaluations = {step: played for step, played in result.evaluations.items() if 0 < 3 * step <= 2 * last}
    return replace(result, arm=EARLIER.format(result.arm), evaluations=evaluations) if evaluations else None


def undecided(arm: str, seed: int, evaluations: Mapping[int, Path]) -> list[str]:
    """A sentence for each evaluation in which the system, or the judge, left held-out rows undecided.

    If a trajectory has several lines, its last line counts, which has the record.

    Args:
        arm: Name of the arm.
        seed: Its seed.
        evaluations: {step: dump of the trajectories on the held-out rows}
    """
    counted = {step: _undecided_rows(path) for step, path in evaluations.items()}
    return [
        f"{arm}, seed {seed}: {number} of {of} held-out rows are undecided at step {step}."
        for step, (number, of) in counted.items()
        if number
    ]


def undecided_in_training(arm: str, seed: int, dumps: Iterable[Path]) -> list[str]:
    """A sentence if the system, or the judge, left rollouts of the training undecided.

    Args:
        arm: Name of the arm.
        seed: Its seed.
        dumps: Dumps of its training steps.
    """
    counted = [_undecided_rows(path) for path in dumps]
    number, of = sum(number for number, _ in counted), sum(of for _, of in counted)
    return [f"{arm}, seed {seed}: {number} of {of} rollouts of the training are undecided."] if number else []


def undecided_share(dumps: Iterable[Path]) -> float:
    """Share of the trajectories in dumps that the system, or the judge, left undecided; 0 without trajectories."""
    counted = [_undecided_rows(path) for path in dumps]
    return sum(number for number, _ in counted) / max(sum(of for _, of in counted), 1)


def _undecided_rows(path: Path) -> tuple[int, int]:
    """(number of undecided trajectories, number of all trajectories) of a dump."""
    records = ((each.score, each.record) for each in read_rollouts(path))
    rows = [score is None or record.is_masked for score, record in records if record is not None]
    return sum(rows), len(rows)
