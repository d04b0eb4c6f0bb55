"""Scores of an oversampled group -> the rollouts that the update sees, by the two filters of TSR's released code.

Both take [num_rollouts] scores, which may be returns of any scale, and return `keep` distinct indices in ascending
order. Among equal scores, those sampled first stay. Source: aladinD/TSR_RAGEN, the code of TSR (arXiv:2602.11767),
which keeps the top of 32 rollouts as best-of-n, and ceil(G / 2) of G as lookahead; here `keep` is any number.
"""

from collections.abc import Sequence
from statistics import fmean


def keep_best(scores: Sequence[float], *, keep: int) -> list[int]:
    """The rollouts with the greatest scores. If at least `keep` rollouts share the greatest, there is no advantage.

    Raises:
        ValueError: If `keep` is out of range.
    """
    return _greatest(scores, keep)


def keep_farthest(scores: Sequence[float], *, keep: int) -> list[int]:
    """The rollouts whose scores are farthest from the mean of the group, above it or below it.

    Raises:
        ValueError: If `keep` is out of range.
    """
    mean = fmean(scores)
    return _greatest([abs(score - mean) for score in scores], keep)


def _greatest(values: Sequence[float], keep: int) -> list[int]:
    if not 1 <= keep <= len(values):
        raise ValueError(f"keep must be in [1, {len(values)}] (the group's size), got {keep}")
    return sorted(sorted(range(len(values)), key=lambda index: -values[index])[:keep])
