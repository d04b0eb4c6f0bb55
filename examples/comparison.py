"""Trajectories of arms over training steps and on shared questions -> curves of means, and paired differences."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, Protocol, TypeVar

import numpy as np
from matplotlib.axes import Axes

from verl_pivot.statistics import PairedDifference, paired_difference
from verl_pivot.types import Json

BIN_STEPS = 5
"""Number of training steps whose mean is one point of a plot."""
PlayedT = TypeVar("PlayedT")


class Answered(Protocol):
    """A trajectory that answered a question."""

    @property
    def prompt_id(self) -> str: ...

    @property
    def em(self) -> float:
        """1 if the answer is right, else 0."""
        ...


AnsweredT = TypeVar("AnsweredT", bound=Answered)
AnsweredT_co = TypeVar("AnsweredT_co", bound=Answered, covariant=True)


@dataclass(frozen=True, kw_only=True)
class UnitResult(Generic[AnsweredT]):
    """Results of one unit, which is one arm with one seed."""

    arm: str
    seed: int
    held_out: Sequence[AnsweredT]
    """Trajectories of the trained policy on the held-out questions."""
    training: Mapping[int, Sequence[AnsweredT]]
    """{step: trajectories}; empty where nothing is trained."""


class HeldOutUnit(Protocol[AnsweredT_co]):
    """Results of one unit on held-out rows and in training."""

    @property
    def arm(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def held_out(self) -> Sequence[AnsweredT_co]:
        """Trajectories of the trained policy on the held-out rows."""
        ...

    @property
    def training(self) -> Mapping[int, Sequence[AnsweredT_co]]:
        """{step: trajectories}; empty where nothing is trained."""
        ...


class TrainedUnit(Protocol):
    """Results of one unit in training, if it was trained."""

    @property
    def arm(self) -> str: ...

    @property
    def training(self) -> Mapping[int, object]:
        """{step: trajectories}; empty where nothing is trained."""
        ...


TrainedUnitT = TypeVar("TrainedUnitT", bound=TrainedUnit)


def trained_arms(results: Iterable[TrainedUnitT]) -> dict[str, list[TrainedUnitT]]:
    """{arm: its units} of the arms that were trained."""
    arms: dict[str, list[TrainedUnitT]] = {}
    for each in results:
        if each.training:
            arms.setdefault(each.arm, []).append(each)
    return arms


def gain(
    baseline: Sequence[AnsweredT], arm: Sequence[AnsweredT], value: Callable[[AnsweredT], float] = lambda each: each.em
) -> PairedDifference:
    """The arm's EM, or another value of trajectories, minus the baseline's, on the questions that both answered."""
    before, after = ({each.prompt_id: value(each) for each in played} for played in (baseline, arm))
    shared = sorted(before.keys() & after.keys())
    return paired_difference([before[each] for each in shared], [after[each] for each in shared])


def mean(values: Sequence[float]) -> float:
    """Mean of the values; NaN if there are none."""
    return fmean(values) if values else float("nan")


def means_by_question(
    played: Iterable[AnsweredT], value: Callable[[AnsweredT], float] = lambda each: each.em
) -> dict[str, float]:
    """{prompt_id: mean EM, or another value, of the trajectories on it, such as those of several seeds}"""
    values: dict[str, list[float]] = {}
    for each in played:
        values.setdefault(each.prompt_id, []).append(value(each))
    return {name: fmean(of_question) for name, of_question in values.items()}


def difference_of_means(baseline: Mapping[str, float], arm: Mapping[str, float]) -> PairedDifference:
    """The arm's means minus the baseline's, on the questions that both have."""
    shared = sorted(baseline.keys() & arm.keys())
    return paired_difference([baseline[each] for each in shared], [arm[each] for each in shared])


def shown_difference(difference: PairedDifference | None) -> str:
    """A difference with its interval; empty for None."""
    if difference is None:
        return ""
    low, high = difference.interval
    return f"{difference.value:+.3f} [{low:+.3f}, {high:+.3f}]"


def difference_as_json(difference: PairedDifference | None) -> Json:
    if difference is None:
        return None
    return {"value": difference.value, "low": difference.interval.low, "high": difference.interval.high}


def binned(training: Mapping[int, Sequence[PlayedT]]) -> list[list[PlayedT]]:
    """[num_bins] trajectories of each bin, which holds BIN_STEPS training steps."""
    bins: list[list[PlayedT]] = [[] for _ in range(0, max(training), BIN_STEPS)]
    for step, played in training.items():
        bins[(step - 1) // BIN_STEPS] += played
    return bins


def draw_curve(
    panel: Axes,
    measure: Callable[[Sequence[PlayedT]], float],
    arm: str,
    seeds: Sequence[Mapping[int, Sequence[PlayedT]]],
) -> None:
    """Plot a measure over training steps: the mean over seeds, and the range from lowest to highest seed."""
    num_bins = min(-(-max(training) // BIN_STEPS) for training in seeds)
    values = np.array([[measure(each) for each in binned(training)[:num_bins]] for training in seeds])
    steps = BIN_STEPS * np.arange(num_bins) + (BIN_STEPS + 1) / 2
    (line,) = panel.plot(steps, values.mean(axis=0), label=arm)
    panel.fill_between(steps, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.15, linewidth=0)
