"""Pivots among the turns of some trajectories -> the number of pivots to expect in all, with an interval."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from verl_pivot.profiling.summary import TrajectoryCluster, clustered_mean
from verl_pivot.statistics import wilson_interval


class ExpectedCount(NamedTuple):
    """A number to expect, with its 95 % interval."""

    expected: int
    low: int
    high: int


def expect_pivots(clusters: Sequence[TrajectoryCluster], *, num_trajectories: int, num_turns: int) -> ExpectedCount:
    """Number of pivots in a whole file.

    The interval is Wilson's (1927) for the share of turns. Since turns of one trajectory tend to be alike, it uses the
    number of independent turns that would have the same standard error as these clustered turns. If no turn or every
    turn is a pivot, that error is not known, and each trajectory counts as one turn.

    Args:
        clusters: [num_drawn] pivots (`total`) and turns (`num_values`) of each drawn trajectory.
        num_trajectories: Trajectories of the file.
        num_turns: Turns of the file.
    """
    num_pivots, num_seen = (round(math.fsum(values)) for values in zip(*clusters, strict=True))
    share = num_pivots / num_seen
    if len(clusters) == num_trajectories:
        return ExpectedCount(num_pivots, num_pivots, num_pivots)
    drawn_share = len(clusters) / num_trajectories
    bounds = wilson_interval(share, _num_independent(clusters, share) / (1.0 - drawn_share))
    least, most = num_pivots, num_turns - (num_seen - num_pivots)
    low, high = (min(max(round(bound * num_turns), least), most) for bound in bounds)
    return ExpectedCount(min(max(round(share * num_turns), least), most), low, high)


def _num_independent(clusters: Sequence[TrajectoryCluster], share: float) -> float:
    """Number of independent turns that say as much about the share as these turns do."""
    error = clustered_mean(clusters).standard_error
    if not 0.0 < share < 1.0 or math.isnan(error):
        return float(len(clusters))
    num_seen = float(sum(cluster.num_values for cluster in clusters))
    return min(num_seen, max(1.0, share * (1.0 - share) / error**2)) if error else num_seen
