"""Two series over the steps of a training -> how they move together: Spearman's rho, and the slope in logarithms.

There are no p-values: the steps of a training depend on each other, and two series that both drift correlate even if
nothing links them. Differences between the means of blocks of steps are free of the drift, and the range over seeds
shows how much a repetition changes.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from scipy.stats import linregress, spearmanr  # type: ignore[import-untyped]

MIN_POINTS = 3
"""Minimum number of points for a correlation or a slope."""


class Trend(NamedTuple):
    """How two series of numbers move together."""

    rho: float | None
    """Spearman's rank correlation; None with fewer than 3 points, or if one series is constant."""
    num_points: int
    """Number of points of the correlation."""
    slope: float | None
    """Slope of the least-squares line of the second series' logarithm over the first one's: a power law's exponent.
    None with fewer than 3 points, or if the first series is constant."""
    num_logarithms: int
    """Number of points of the line: those at which neither series is 0."""


class SeedRange(NamedTuple):
    """Smallest and largest value over the seeds that have one."""

    low: float
    high: float
    num_seeds: int


def level_trend(first: Sequence[float], second: Sequence[float]) -> Trend:
    """How two series move together, step by step.

    Args:
        first: [num_steps] numbers of at least 0.
        second: [num_steps] numbers of the same steps.
    """
    points = list(zip(first, second, strict=True))
    logarithms = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    return _trend(points, logarithms)


def difference_trend(first: Sequence[float], second: Sequence[float], block_size: int) -> Trend:
    """How the changes of two series from block to block move together.

    The correlation is that of the differences of the blocks' means, and the slope that of the differences of the means'
    logarithms. Steps at the end that fill no block are left out.

    Args:
        first: [num_steps] numbers of at least 0.
        second: [num_steps] numbers of the same steps.
        block_size: Number of steps in a block, >= 1.
    """
    means = list(zip(block_means(first, block_size), block_means(second, block_size), strict=True))
    differences = [(x - x_before, y - y_before) for (x_before, y_before), (x, y) in pairwise(means)]
    logarithms = [
        (math.log(x / x_before), math.log(y / y_before))
        for (x_before, y_before), (x, y) in pairwise(means)
        if min(x_before, y_before, x, y) > 0
    ]
    return _trend(differences, logarithms)


def block_means(values: Sequence[float], block_size: int) -> list[float]:
    """[num_steps // block_size] means of successive blocks; values at the end that fill no block are left out."""
    ends = range(block_size, len(values) + 1, block_size)
    return [fmean(values[end - block_size : end]) for end in ends]


def seed_range(values: Iterable[float | None]) -> SeedRange | None:
    """The range of a statistic over seeds; None if no seed has it.

    Args:
        values: [num_seeds] the statistic of each seed.
    """
    known = [value for value in values if value is not None]
    return SeedRange(min(known), max(known), len(known)) if known else None


def _trend(points: Sequence[tuple[float, float]], logarithms: Sequence[tuple[float, float]]) -> Trend:
    rho = slope = None
    if _is_told(points) and len({y for _, y in points}) > 1:
        rho = float(spearmanr(*zip(*points, strict=True)).statistic)
    if _is_told(logarithms):
        slope = float(linregress(*zip(*logarithms, strict=True)).slope)
    return Trend(rho, len(points), slope, len(logarithms))


def _is_told(points: Sequence[tuple[float, float]]) -> bool:
    """Whether there are enough points, and the first series is not constant."""
    return len(points) >= MIN_POINTS and len({x for x, _ in points}) > 1
