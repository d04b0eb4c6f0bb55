"""Outcomes -> estimates with 95 % intervals: Wilson's for a share, the bootstrap over questions, t over trainings."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

_Z = 1.96
"""Standard deviations on either side of a 95 % interval."""
_NUM_DRAWS = 10_000
_BLOCK_SIZE = 5_000_000
"""Largest number of counts that a paired difference draws at once, 40 MB: enough for all draws of 500 questions."""


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
        number: Number of independent trials; need not be an integer if trials depend on each other.

    Raises:
        ValueError: If the share lies outside [0, 1], or there is no trial.
    """
    if not 0.0 <= share <= 1.0 or number <= 0.0:
        raise ValueError(f"an interval needs a share in [0, 1] and more than 0 trials, got {share} of {number}")
    middle = (share + _Z**2 / (2 * number)) / (1 + _Z**2 / number)
    half = _Z / (1 + _Z**2 / number) * math.sqrt(share * (1 - share) / number + _Z**2 / (4 * number**2))
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Interval(min(low, share), max(high, share))  # against rounding at shares of 0 and 1


@lru_cache(maxsize=1)
def bootstrap_counts(num_questions: int) -> NDArray[np.int64]:
    """[10,000 draws, num_questions] how often each draw with replacement holds each question; read-only.

    The draws are the same in every call, so that arms of an experiment are compared on the same questions. They are
    kept for the next call, since a table compares many arms on as many questions.
    """
    (counts,) = _count_blocks(num_questions, _NUM_DRAWS)
    counts.flags.writeable = False
    return counts


def _count_blocks(num_questions: int, num_draws: int) -> Iterator[NDArray[np.int64]]:
    """The draws of `bootstrap_counts`, in blocks of `num_draws`."""
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
    num_draws = max(1, _BLOCK_SIZE // len(gains))
    blocks = _count_blocks(len(gains), num_draws) if num_draws < _NUM_DRAWS else [bootstrap_counts(len(gains))]
    drawn = np.concatenate([counts @ gains / len(gains) for counts in blocks])
    return PairedDifference(float(gains.mean()), percentile_interval(drawn))


def bootstrap_means(outcomes: ArrayLike, stream: int = 0) -> NDArray[np.float64]:
    """[10,000 draws, num_columns] means of each column over tasks that are drawn with replacement.

    Tasks with equal outcomes cannot be told apart, so each draw only says how often it holds each distinct outcome.

    Args:
        outcomes: [num_tasks, num_columns], a row for each task, drawn as a whole.
        stream: Number of the random stream; sets of tasks that are drawn independently need different ones.

    Raises:
        ValueError: If there is no task.
    """
    rows = np.asarray(outcomes, dtype=float)
    if rows.ndim != 2 or not len(rows):
        raise ValueError(
            f"outcomes must have the shape [num_tasks, num_columns] with at least one task, got {rows.shape}"
        )
    distinct, number = np.unique(rows, axis=0, return_counts=True)
    counts = np.random.default_rng([0, stream]).multinomial(len(rows), number / len(rows), _NUM_DRAWS)
    means: NDArray[np.float64] = counts @ distinct / len(rows)
    return means


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededEstimate:
    """A value of a study, from trainings with several seeds that were all evaluated on tasks of several domains."""

    value: float
    """Mean over seeds of the mean over domains."""
    by_seed: tuple[float, ...]
    """[num_seeds] mean over domains for each seed."""
    drawn: NDArray[np.float64]
    """[10,000 draws] the value in draws of tasks within seed and domain."""

    @property
    def over_tasks(self) -> Interval:
        """Interval for these trainings on other tasks."""
        return percentile_interval(self.drawn)

    @property
    def over_trainings(self) -> Interval | None:
        """Interval for other trainings; None with a single seed, which does not tell how trainings differ."""
        return t_interval(self.by_seed) if len(self.by_seed) > 1 else None


def seeded_difference(pairs: Sequence[Sequence[tuple[ArrayLike, ArrayLike]]]) -> SeededEstimate:
    """Mean of an arm minus the mean of a baseline, all seeds and domains weighing alike.

    Args:
        pairs: [num_seeds][num_domains] outcomes of the baseline and of the arm, [num_tasks] each, on the same tasks.

    Raises:
        ValueError: If there is no pair, or its halves differ in their number of tasks.
    """
    if not pairs or not all(pairs):
        raise ValueError("a difference needs at least one seed, and each seed at least one domain")
    by_seed, drawn, stream = [], np.zeros(_NUM_DRAWS), 0
    for domains in pairs:
        means = []
        for baseline, arm in domains:
            before, after = np.asarray(baseline, dtype=float), np.asarray(arm, dtype=float)
            if before.shape != after.shape:
                raise ValueError(f"{len(before)} outcomes of one arm cannot be paired with {len(after)} of another")
            drawn += bootstrap_means((after - before)[:, None], stream)[:, 0] / len(domains) / len(pairs)
            means.append(float((after - before).mean()))
            stream += 1
        by_seed.append(math.fsum(means) / len(means))
    return SeededEstimate(value=math.fsum(by_seed) / len(by_seed), by_seed=tuple(by_seed), drawn=drawn)


def t_interval(values: Sequence[float]) -> Interval:
    """Interval of the mean of independent values, by Student's t (1908); wide if there are few values.

    Raises:
        ValueError: If there are fewer than two values.
    """
    mean, error = _mean_and_error(values)
    half = float(stdtrit(len(values) - 1, 0.975)) * error
    return Interval(mean - half, mean + half)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        raise ValueError(f"a standard error needs at least two values, got {len(values)}")
    return float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))


class Region(NamedTuple):
    """The open interval in which a claim says that a value lies; an infinite end is no bound.

    Example:
        Region(low=0.0)  # above 0
        Region(low=-0.02, high=0.02)  # within two points of 0
    """

    low: float = -math.inf
    high: float = math.inf

    def holds(self, value: float) -> bool:
        return self.low < value < self.high


def p_inside(drawn: ArrayLike, region: Region) -> float:
    """p-value of the claim that the value lies in the region: the larger one of two one-sided tests.

    The test of a bound counts the bootstrap draws on its wrong side, as the percentile interval does, plus one.
    """
    values = np.asarray(drawn)
    num_wrong = max(int((values <= region.low).sum()), int((values >= region.high).sum()))
    return (num_wrong + 1) / (len(values) + 1)


def p_inside_by_t(mean: float, standard_error: float, degrees: float, region: Region) -> float:
    """p-value as of `p_inside`, but by Student's t: the two one-sided tests of Schuirmann (1987).

    Args:
        mean: The estimate.
        standard_error: Its standard error, > 0.
        degrees: Degrees of freedom.
        region: Region in which the claim says that the value lies.
    """
    below, above = (mean - region.low) / standard_error, (region.high - mean) / standard_error
    return float(max(stdtr(degrees, -below), stdtr(degrees, -above)))


def holm(p_values: Sequence[float]) -> list[float]:
    """[num_claims] p-values adjusted for their number (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, position in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[position]))
        adjusted[position] = highest
    return adjusted


class ClaimVerdict(StrEnum):
    """Verdict of a study on a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    UNDECIDED = "undecided"


def verdict_of(parts: Sequence[tuple[SeededEstimate, Region]], adjusted_p: float, alpha: float = 0.05) -> ClaimVerdict:
    """Verdict on a claim that says, for the value of each part, in which region it lies.

    A claim holds if it is significant and the values of all seeds lie in their regions. It does not hold if, for some
    part, the whole interval over tasks lies outside of the region and so do the values of all seeds.

    Raises:
        ValueError: If the claim has no part.
    """
    if not parts:
        raise ValueError("a claim needs at least one part")
    for estimate, region in parts:
        low, high = estimate.over_tasks
        is_outside = high < region.low or low > region.high
        if is_outside and not any(map(region.holds, estimate.by_seed)):
            return ClaimVerdict.DOES_NOT_HOLD
    agree = all(region.holds(value) for estimate, region in parts for value in estimate.by_seed)
    return ClaimVerdict.HOLDS if agree and adjusted_p < alpha else ClaimVerdict.UNDECIDED


def first_reaching(accuracies: ArrayLike, levels: ArrayLike) -> NDArray[np.int64]:
    """[num_curves] position of the first evaluation at which a curve reaches its level; -1 if it never does.

    A curve and its `monotone` version have the same position.

    Args:
        accuracies: [num_curves, num_evaluations] in the order of training.
        levels: [num_curves] accuracy to reach.
    """
    is_reached = np.asarray(accuracies) >= np.asarray(levels)[:, None]
    return np.where(is_reached.any(axis=1), is_reached.argmax(axis=1), -1)


def monotone(accuracies: ArrayLike) -> NDArray[np.float64]:
    """[num_curves, num_evaluations] the highest accuracy so far."""
    return np.maximum.accumulate(np.asarray(accuracies, dtype=float), axis=1)
