"""StepToolUse of one run or of several seeds -> how calls, length and accuracy move together."""

from collections.abc import Sequence
from typing import NamedTuple

from verl_pivot.runs.tool_use import StepToolUse
from verl_pivot.runs.trends import SeedRange, Trend, difference_trend, level_trend, seed_range

PAIRS = (
    ("step", "calls"),
    ("step", "tokens"),
    ("step", "accuracy"),
    ("calls", "tokens"),
    ("calls", "accuracy"),
    ("tokens", "accuracy"),
)
"""Pairs of fields of StepToolUse whose trends are reported. ZeroTIR's abstract (arXiv:2505.07773) speaks of those over
steps."""


class PairTrend(NamedTuple):
    """How two fields of a run move together."""

    first: str
    second: str
    levels: Trend
    differences: Trend | None
    """Trend of the changes from block to block; None if `first` is the step, which changes by a constant amount."""


class PairRange(NamedTuple):
    """Ranges over seeds of the values of a PairTrend; None if no seed has the value."""

    first: str
    second: str
    rho: SeedRange | None
    slope: SeedRange | None
    difference_rho: SeedRange | None
    difference_slope: SeedRange | None


def pair_trends(steps: Sequence[StepToolUse], block_size: int) -> tuple[PairTrend, ...]:
    """Trends of every pair of PAIRS over one run; a step without the pair's fields is left out of it.

    Args:
        steps: [num_steps] tool use in the run's steps, in order.
        block_size: Number of steps in a block, >= 1.
    """
    return tuple(_pair_trend(steps, first, second, block_size) for first, second in PAIRS)


def pair_ranges(runs: Sequence[Sequence[PairTrend]]) -> tuple[PairRange, ...]:
    """Ranges of every pair over runs that differ in their seeds.

    Args:
        runs: [num_seeds, num_pairs] trends of each run.
    """
    return tuple(_pair_range(of_pair) for of_pair in zip(*runs, strict=True))


def _pair_trend(steps: Sequence[StepToolUse], first: str, second: str, block_size: int) -> PairTrend:
    points = [
        (x, y) for step in steps if (x := _field(step, first)) is not None and (y := _field(step, second)) is not None
    ]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    differences = None if first == "step" else difference_trend(xs, ys, block_size)
    return PairTrend(first, second, level_trend(xs, ys), differences)


def _field(step: StepToolUse, name: str) -> float | None:
    values = {"step": step.step, "calls": step.calls, "tokens": step.tokens, "accuracy": step.accuracy}
    return values[name]


def _pair_range(trends: Sequence[PairTrend]) -> PairRange:
    differences = [trend.differences for trend in trends if trend.differences is not None]
    return PairRange(
        trends[0].first,
        trends[0].second,
        rho=seed_range(trend.levels.rho for trend in trends),
        slope=seed_range(trend.levels.slope for trend in trends),
        difference_rho=seed_range(trend.rho for trend in differences),
        difference_slope=seed_range(trend.slope for trend in differences),
    )
