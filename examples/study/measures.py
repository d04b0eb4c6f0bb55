"""Rewards, log ratios and gradients of turns -> the paper's measures that have no verdict, as pure numbers."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import fmean, pvariance

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata  # type: ignore[import-untyped]

_TOLERANCE = 0.02
"""Largest relative difference from the wanted KL at which the length of a step is accepted."""
_MOST_TRIALS = 40


def has_signal(rewards: Collection[float]) -> bool:
    """Whether a group of rewards gives an advantage other than 0 (PivotRL, proposition 3.1)."""
    return len(set(rewards)) > 1


def deviation(rewards: Sequence[float]) -> float:
    """Population standard deviation of rewards, the estimate of PivotRL, section 3.1; exactly 0 for equal rewards."""
    return math.sqrt(pvariance(rewards)) if has_signal(rewards) else 0.0


def variance_within(groups: Iterable[Sequence[float]]) -> float:
    """Population variance of the rewards within a group, averaged over the groups of a batch.

    Advantages are made from the differences within a group.

    Raises:
        ValueError: If there is no group, or a group without rewards.
    """
    return _mean([deviation(_filled(group)) ** 2 for group in groups])


def variance_of_batch(groups: Iterable[Sequence[float]]) -> float:
    """Population variance of all rewards of a batch, which includes the variance between the means of groups.

    Raises:
        ValueError: If there is no reward.
    """
    return deviation(_filled([reward for group in groups for reward in group])) ** 2


def last_third(steps: Iterable[int], num_steps: int) -> list[int]:
    """Those of the steps that lie in the last third of the range from 1 to `num_steps`, in order."""
    return sorted(step for step in set(steps) if 3 * step > 2 * num_steps)


def gain_in_mean(log_ratios: ArrayLike, rewards: ArrayLike, counts: ArrayLike) -> float:
    """Mean reward of an updated policy minus that of the policy that sampled, estimated by importance weights.

    The mean is subtracted from each reward, which removes most of the noise.

    Args:
        log_ratios: [num_answers] log probability of each answer under the updated policy, minus that under the policy
            that sampled it.
        rewards: [num_answers] reward of each answer.
        counts: [num_answers] how often each answer was sampled.

    Raises:
        ValueError: If nothing was sampled.
    """
    ratios, values, weights = (np.asarray(each, dtype=float) for each in (np.exp(log_ratios), rewards, counts))
    if not weights.sum() > 0.0:
        raise ValueError("no answer was sampled")
    shares = weights / weights.sum()
    return float(shares @ ((ratios - 1.0) * (values - shares @ values)))


def advantages(rewards: ArrayLike, counts: ArrayLike) -> list[float]:
    """[num_answers] reward of each distinct answer minus the mean reward, times the answer's share of the samples.

    There is no division by the standard deviation, since the step along the gradient is scaled to a KL anyway.
    """
    values, weights = np.asarray(rewards, dtype=float), np.asarray(counts, dtype=float)
    shares = weights / weights.sum()
    return list(map(float, shares * (values - shares @ values)))


def length_of_step(kl: Callable[[float], float], wanted: float, first: float) -> float | None:
    """Length of the step along a direction whose KL is the wanted one, within two percent.

    The KL of a short step grows with the square of its length. So after each trial, the length is multiplied by the
    square root of the wanted KL over the KL of the trial.

    Args:
        kl: Function of a step's length that gives the KL of the policy after the step.
        wanted: KL that the step should have, in nats.
        first: Length of the first trial.

    Returns:
        The length; None if no trial had the wanted KL, for example because the KL stays 0 or the policy overflows.
    """
    length = first
    for _ in range(_MOST_TRIALS):
        found = kl(length)
        if not math.isfinite(found):
            length /= 10.0
        elif abs(found - wanted) <= _TOLERANCE * wanted:
            return length
        else:
            length *= 10.0 if found <= 0.0 else min(10.0, max(0.1, math.sqrt(wanted / found)))
    return None


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float | None:
    """Spearman's rank correlation (1904), with the mean rank for equal values; None if one side is constant.

    Raises:
        ValueError: If the sides differ in length.
    """
    first, second = rankdata(x), rankdata(y)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} values cannot be ranked beside {len(second)}")
    if len(first) < 2 or np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def _filled(rewards: Sequence[float]) -> Sequence[float]:
    if not rewards:
        raise ValueError("a group has no reward")
    return rewards


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("a batch has no group")
    return fmean(values)
