"""Scores of a turn that is sampled in stages -> whether to stop, and statistics that stopping does not bias."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise, product
from statistics import mean, variance
from typing import Literal, NamedTuple, Self

from verl_pivot.errors import ConfigError
from verl_pivot.types import JsonObject, TurnProfile


class ScoreCounts(NamedTuple):
    """How many samples of each kind were drawn."""

    num_wrong: int
    num_partial: int
    """Samples with a score between 0 and 1."""
    num_right: int
    num_undecided: int

    @property
    def num_decided(self) -> int:
        return self.num_wrong + self.num_partial + self.num_right

    @property
    def is_mixed(self) -> bool:
        """Whether scores differ; two partial ones may be equal, so they do not count."""
        return (self.num_wrong > 0) + (self.num_partial > 0) + (self.num_right > 0) > 1


_WRONG, _PARTIAL, _RIGHT, _UNDECIDED = range(4)
"""Kinds of samples: positions in ScoreCounts."""


class Estimates(NamedTuple):
    """Expected mean over all K samples; exact."""

    pass_rate: Fraction
    reward_mean: Fraction
    reward_var: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """A closed plan: sample in stages, and stop after one that settles what a filter will say of all K samples."""

    filter: Literal["pivots", "unsolved"]
    """"pivots" keeps turns of mixed scores with a mean below lambda_diff, "unsolved" drops those with K right ones."""
    stages: tuple[int, ...]
    """Samples drawn by the end of each stage; the last is K."""
    lambda_diff: float = 1.0

    def __post_init__(self) -> None:
        if not self.stages or self.stages[0] < 2 or any(before >= after for before, after in pairwise(self.stages)):
            raise ConfigError(f"--stages must rise from at least 2 to --samples, got {list(self.stages)}")
        if not 0.0 < self.lambda_diff <= 1.0:
            raise ConfigError(f"--lambda-diff must lie in (0, 1], got {self.lambda_diff}")

    @classmethod
    def parse(cls, obj: JsonObject) -> Self:
        """The inverse of `dataclasses.asdict`.

        Raises:
            ConfigError: If it is no plan.
        """
        match obj:
            case {"filter": "pivots" | "unsolved" as name, "stages": [*stages], "lambda_diff": float() as lambda_diff}:
                sizes = tuple(size for size in stages if isinstance(size, int))
                return cls(filter=name, stages=sizes, lambda_diff=lambda_diff)
        raise ConfigError(f"a plan needs filter, stages and lambda_diff, got {obj}")

    @property
    def num_samples(self) -> int:
        """Samples that the plan draws at most, K."""
        return self.stages[-1]

    def is_settled(self, counts: ScoreCounts) -> bool:
        """Whether no further sample can change the filter's verdict; less than two scores never settle it."""
        if counts.num_decided < 2:
            return False
        if self.filter == "unsolved":
            return counts.num_wrong + counts.num_partial > 0
        most_decided = self.num_samples - counts.num_undecided
        highest_mean = (most_decided - counts.num_wrong) / most_decided
        lowest_mean = counts.num_right / most_decided
        is_pivot = counts.is_mixed and (self.lambda_diff == 1.0 or highest_mean < self.lambda_diff)
        return is_pivot or lowest_mean >= self.lambda_diff

    def ends_at(self, counts: ScoreCounts) -> bool:
        """Whether a turn with these samples gets no more."""
        num_drawn = sum(counts)
        return num_drawn == self.num_samples or (num_drawn in self.stages and self.is_settled(counts))


def count_scores(scores: Sequence[float | Fraction | None]) -> ScoreCounts:
    undecided, right, wrong = (scores.count(value) for value in (None, 1, 0))
    return ScoreCounts(
        num_wrong=wrong,
        num_partial=len(scores) - wrong - right - undecided,
        num_right=right,
        num_undecided=undecided,
    )


def estimate(plan: EarlyStop, scores: Sequence[float | Fraction | None]) -> Estimates | None:
    """Unbiased estimates of what the statistics of K samples estimate; None without a decided sample.

    The mean of the drawn samples is biased, since they decided how many were drawn. The first sample is not, nor is its
    expectation over all orders of the drawn samples in which the plan ends with the last one (Girshick, Mosteller and
    Savage 1946); likewise half the squared difference of the first two for the variance. We tell three kinds of scores
    apart in the orders: 0, 1 and those between. Of a single turn the drawn samples say more.

    Args:
        plan: That the samples were drawn by.
        scores: [num_drawn] in any order; None is undecided.
    """
    decided = sorted(Fraction(score) for score in scores if score is not None)
    return _estimate(plan, tuple(decided), len(scores) - len(decided))


@lru_cache(maxsize=1 << 14)
def _estimate(plan: EarlyStop, decided: tuple[Fraction, ...], num_undecided: int) -> Estimates | None:
    if not decided:
        return None
    counts = count_scores([*decided, *[None] * num_undecided])
    beginnings = _beginnings(plan, counts)
    num_orders = sum(beginnings.values())
    of_kind = {
        kind: [score for score in decided if _kind(score) == kind] for kind in {_kind(score) for score in decided}
    }
    means = {kind: mean(scores) for kind, scores in of_kind.items()}
    num_full = plan.num_samples - num_undecided  # a full group's variance is (K - 1) / K of the true one on average
    return Estimates(
        pass_rate=Fraction(sum(number for kinds, number in beginnings.items() if kinds[0] == _RIGHT), num_orders),
        reward_mean=sum((number * means[kinds[0]] for kinds, number in beginnings.items()), Fraction()) / num_orders,
        reward_var=sum(
            (number * _half_square(*(of_kind[kind] for kind in kinds)) for kinds, number in beginnings.items()),
            Fraction(),
        )
        / num_orders
        * (num_full - 1)
        / num_full,
    )


def _beginnings(plan: EarlyStop, counts: ScoreCounts) -> Counter[tuple[int, ...]]:
    """[kinds of the first two decided samples] orders of the drawn samples in which the plan does not stop before."""
    orders: dict[tuple[int, ...], Counter[tuple[int, ...]]] = {}
    for state in product(*(range(count + 1) for count in counts)):
        reached = orders[state] = Counter()
        if not any(state):
            reached[()] = 1
        for kind in range(len(state)):
            before = (*state[:kind], state[kind] - 1, *state[kind + 1 :])
            if state[kind] and not plan.ends_at(ScoreCounts(*before)):
                for kinds, number in orders[before].items():
                    reached[kinds if kind == _UNDECIDED or len(kinds) == 2 else (*kinds, kind)] += number
    return orders[counts]


def _half_square(first: Sequence[Fraction], second: Sequence[Fraction] = ()) -> Fraction:
    """Mean of (x - y)^2 / 2 over pairs of two samples, x of the one kind and y of the other; 0 of a lone sample."""
    if not second:
        return Fraction()
    if first is second:
        return variance(first)
    return mean([(x - y) ** 2 for x in first for y in second]) / 2


def _kind(score: Fraction) -> int:
    return _WRONG if score == 0 else _RIGHT if score == 1 else _PARTIAL


class Statistics(NamedTuple):
    """Numbers of one turn; NaN where no sample was decided."""

    pass_rate: float
    reward_mean: float
    reward_std: float
    reward_var: float

    def as_dict(self) -> JsonObject:
        """The statistics as JSON, with null for NaN."""
        return {name: None if math.isnan(value) else value for name, value in self._asdict().items()}


def turn_statistics(profile: TurnProfile, early_stop: EarlyStop | None = None) -> Statistics:
    """Statistics of one turn: of its drawn samples, or unbiased ones of all K samples that a plan might have drawn.

    What becomes of the turn is for the drawn samples to say, since the plan stopped when they had settled it.
    """
    if early_stop is None:
        return Statistics(profile.pass_rate, profile.reward_mean, profile.reward_std, profile.reward_var)
    estimates = estimate(early_stop, [sample.verdict.score for sample in profile.samples])
    if estimates is None:
        return Statistics(math.nan, math.nan, math.nan, math.nan)
    pass_rate, mean, variance = map(float, estimates)
    return Statistics(pass_rate, mean, math.sqrt(variance), variance)
