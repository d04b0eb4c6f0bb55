"""Evaluations of two arms with one seed -> bounds on the ratio of the costs at which both reach one accuracy."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from examples.study.claims import Measure
from examples.study.outcomes import UnitEvaluation, known_outcomes
from verl_pivot.errors import DataError
from verl_pivot.statistics import bootstrap_means, first_reaching, monotone

UNBOUNDED = 100.0
"""Logarithm that stands for a ratio without an upper bound; with a minus, for one without a lower bound. It lies beyond
the bounds of all claims, also in a mean over seeds, and is finite, so that the draws have quantiles."""


class RatioEnd(NamedTuple):
    """The lowest or the highest ratio that the evaluations allow, as a logarithm."""

    value: float
    drawn: NDArray[np.float64]
    """[num_draws] the same value in each bootstrap draw of tasks."""


class CostRatio(NamedTuple):
    """Cost of the baseline until it reaches the arm's highest accuracy, divided by the arm's own cost until then."""

    low: RatioEnd
    high: RatioEnd


def cost_ratio(
    measure: Measure,
    arm: Sequence[UnitEvaluation],
    baseline: Sequence[UnitEvaluation],
    groups: Sequence[str],
    stream: int,
) -> CostRatio:
    """Lowest and highest cost ratio that the evaluations allow.

    A curve reaches an accuracy after the last evaluation below it, and at the latest at the first evaluation that has
    it. If the baseline never reaches the accuracy, its whole cost is only a lower bound. Each bootstrap draw of tasks
    is used for both curves.

    Args:
        measure: What is counted as a cost.
        arm: Evaluations of the arm, in the order of training.
        baseline: Evaluations of the baseline, in the order of training.
        groups: Groups of held-out tasks whose mean is the accuracy.
        stream: Number that selects the random stream of the draws.

    Raises:
        DataError: If the cost until an evaluation is not positive and finite.
    """
    outcomes = [np.array(known_outcomes([*arm, *baseline], group), dtype=float) for group in groups]
    means = [rows.mean(axis=0, keepdims=True) for rows in outcomes]
    drawn = [bootstrap_means(rows, 1000 * stream + number) for number, rows in enumerate(outcomes)]
    costs = [_costs(curve, measure) for curve in (arm, baseline)]
    low, high = _log_ratios(np.mean(means, axis=0), *costs)
    lows, highs = _log_ratios(np.mean(drawn, axis=0), *costs)
    return CostRatio(RatioEnd(float(low[0]), lows), RatioEnd(float(high[0]), highs))


def _log_ratios(
    accuracies: NDArray[np.float64], arm_costs: NDArray[np.float64], costs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[num_curves] logarithms of the lowest and the highest ratio; the costs come from `_costs`."""
    own, other = np.split(accuracies, [len(arm_costs) - 2], axis=1)
    level = monotone(own)[:, -1]
    arm_before, arm_then = _between(own, level, arm_costs)
    before, then = _between(other, level, costs)
    with np.errstate(divide="ignore"):
        low, high = np.log(before / arm_then), np.log(then / arm_before)
    return np.clip(low, -UNBOUNDED, UNBOUNDED), np.clip(high, -UNBOUNDED, UNBOUNDED)


def _between(
    accuracies: NDArray[np.float64], level: NDArray[np.float64], costs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[num_curves] costs at the last evaluation before the level is reached, and at the one that reaches it."""
    first = first_reaching(accuracies, level)
    position = np.where(first < 0, accuracies.shape[1], first)
    return costs[position], costs[position + 1]


def _costs(curve: Sequence[UnitEvaluation], measure: Measure) -> NDArray[np.float64]:
    """[num_evaluations + 2] costs before the first step, until each evaluation, and infinity after the last one."""
    profiled = float(curve[-1].profile_turns) if measure is Measure.TURNS_WITH_PROFILE else 0.0
    return np.array([profiled, *(_cost(each, measure) + profiled for each in curve), math.inf])


def _cost(evaluation: UnitEvaluation, measure: Measure) -> float:
    """Cost of training until an evaluation.

    Raises:
        DataError: If the cost is not positive and finite, so that no ratio can be taken.
    """
    cost = evaluation.seconds if measure is Measure.SECONDS else float(evaluation.turns)
    if not 0.0 < cost < math.inf:
        where = f"{evaluation.arm}, seed {evaluation.seed}, step {evaluation.step}"
        raise DataError(f"{where} has {cost:g} {measure.replace('_', ' ')}: remove the unit's folder, and run it again")
    return cost
