"""Outcomes -> estimates with 95 % intervals: Wilson's for a share, the bootstrap over questions for all else."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Z = 1.96
"""Standard deviations on either side of a 95 % interval."""
_NUM_DRAWS = 10_000
_BLOCK_SIZE = 20_000_000
"""Greatest number of counts that a paired difference draws at once, 160 MB: all of those of 2,000 questions."""


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


class PairedDifference(NamedTuple):
    """Mean of one arm minus the mean of another, on the same questions."""

    value: float
    interval: Interval


def wilson_interval(share: float, number: float) -> Interval:
    """Interval of a share of successes, by Wilson's score (1927).

    Args:
        share: Share of successes, in [0, 1].
        number: Number of independent trials, which need not be whole where trials depend on each other.

    Raises:
        ValueError: If the share lies outside [0, 1], or there is no trial.
    """
    if not 0.0 <= share <= 1.0 or number <= 0.0:
        raise ValueError(f"a share of {share} of {number} trials has no interval")
    middle = (share + _Z**2 / (2 * number)) / (1 + _Z**2 / number)
    half = _Z / (1 + _Z**2 / number) * math.sqrt(share * (1 - share) / number + _Z**2 / (4 * number**2))
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Interval(min(low, share), max(high, share))  # against rounding at shares of 0 and 1


def bootstrap_counts(num_questions: int) -> NDArray[np.int64]:
    """[10,000 draws, num_questions] how often each draw with replacement holds each question.

    The draws are the same in every call, so that arms of an experiment are compared on the same questions.
    """
    (counts,) = _count_blocks(num_questions, _NUM_DRAWS)
    return counts


def _count_blocks(num_questions: int, num_draws: int) -> Iterator[NDArray[np.int64]]:
    """The same draws in blocks of so many."""
    equal, draw = np.full(num_questions, 1 / num_questions), np.random.default_rng(0)
    for begin in range(0, _NUM_DRAWS, num_draws):
        yield draw.multinomial(num_questions, equal, min(num_draws, _NUM_DRAWS - begin))


def percentile_interval(drawn: ArrayLike) -> Interval:
    """Interval of a value, from its values in all draws of a bootstrap."""
    low, high = np.quantile(np.asarray(drawn), (0.025, 0.975))
    return Interval(float(low), float(high))


def paired_difference(baseline: Sequence[float], arm: Sequence[float]) -> PairedDifference:
    """The arm's mean minus the baseline's, with the interval of a bootstrap over the questions that both answered.

    Args:
        baseline: [num_questions] scores, or whether each question was answered rightly.
        arm: [num_questions] scores of the same questions in the same order.

    Raises:
        ValueError: If the numbers of scores differ, or there is none.
    """
    if len(arm) != len(baseline) or not len(arm):
        raise ValueError(f"{len(baseline)} scores of one arm cannot be paired with {len(arm)} of another")
    gains = np.subtract(arm, baseline, dtype=float)
    blocks = _count_blocks(len(gains), max(1, _BLOCK_SIZE // len(gains)))
    drawn = np.concatenate([counts @ gains / len(gains) for counts in blocks])
    return PairedDifference(float(gains.mean()), percentile_interval(drawn))
