"""Early stopping: scores of the samples so far -> whether to draw more, and statistics without a bias by stopping."""

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
    """Number of samples of one turn for each kind of score."""

    num_wrong: int
    """Samples with score 0."""
    num_partial: int
    """Samples with a score between 0 and 1."""
    num_right: int
    """Samples with score 1."""
    num_undecided: int
    """Samples without a score."""

    @property
    def num_decided(self) -> int:
        return self.num_wrong + self.num_partial + self.num_right

    @property
    def is_mixed(self) -> bool:
        """Whether the scores certainly differ; two partial scores alone do not show it, because they may be equal."""
        return (self.num_wrong > 0) + (self.num_partial > 0) + (self.num_right > 0) > 1


_WRONG, _PARTIAL, _RIGHT, _UNDECIDED = range(4)
"""Kinds of samples: positions in ScoreCounts."""


class Estimates(NamedTuple):
    """Unbiased estimates of the statistics of all K samples, as exact fractions."""

    pass_rate: Fraction
    reward_mean: Fraction
    reward_var: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Plan of early stopping: a turn is sampled in stages, until it is certain whether a filter keeps the turn.

    The filter decides by all K samples. Its decision is settled as soon as no further sample can change it.
    """

    filter: Literal["pivots", "unsolved"]
    """"pivots" keeps mixed turns of mean score below lambda_diff; "unsolved" keeps turns that are not always right."""
    stages: tuple[int, ...]
    """Number of samples drawn by the end of each stage; the last is K."""
    lambda_diff: float = 1.0
    """Exclusive upper bound of the mean score of a pivot; "unsolved" does not use it."""

    def __post_init__(self) -> None:
        if not self.stages or self.stages[0] < 2 or any(before >= after for before, after in pairwise(self.stages)):
            raise ConfigError(f"--stages must rise from at least 2 to --samples, got {list(self.stages)}")
        if not 0.0 < self.lambda_diff <= 1.0:
            raise ConfigError(f"--lambda-diff must lie in (0, 1], got {self.lambda_diff}")

    @classmethod
    def parse(cls, obj: JsonObject) -> Self:
        """Plan from a dictionary that `dataclasses.asdict` made.

        Raises:
            ConfigError: If a field is missing or has a value that is not allowed.
        """
        match obj:
            case {"filter": "pivots" | "unsolved" as name, "stages": [*stages], "lambda_diff": float() as lambda_diff}:
                sizes = tuple(size for size in stages if isinstance(size, int))
                return cls(filter=name, stages=sizes, lambda_diff=lambda_diff)
        raise ConfigError(f"a plan needs filter, stages and lambda_diff, got {obj}")

    def check_decides(self, keep: str, lambda_diff: float) -> None:
        """Refuse a selection by another filter, for which turns may have been stopped too early.

        Args:
            keep: The selection's filter; "all" goes by no score.
            lambda_diff: Exclusive upper bound of the mean score of a pivot.

        Raises:
            ConfigError: If turns were not sampled until this filter's decision was certain.
        """
        is_bounded = self.filter == "pivots"
        if keep == "all" or (keep == self.filter and (not is_bounded or lambda_diff == self.lambda_diff)):
            return
        wanted = f"--keep {self.filter}" + f" --lambda-diff {self.lambda_diff:g}" * is_bounded
        asked = f"--keep {keep}" + f" --lambda-diff {lambda_diff:g}" * (keep == "pivots")
        raise ConfigError(
            f"the profile stopped sampling a turn once {wanted} was certain (--early-stop {self.filter}), which does "
            f"not decide {asked}: select with {wanted}, or profile again with the rule that you want"
        )

    @property
    def num_samples(self) -> int:
        """Maximum number of samples that the plan draws for a turn, K."""
        return self.stages[-1]

    def is_settled(self, counts: ScoreCounts) -> bool:
        """Whether no further sample can change the filter's decision; fewer than two scores never settle it."""
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
        """Whether the plan draws no further sample for a turn with these counts."""
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
    """Unbiased estimates of the expected statistics of K samples; None without a decided sample.

    The mean of the drawn samples is biased, because their scores decided how many were drawn. The first sample alone
    is unbiased, and so is its mean over all orders of the drawn samples in which the plan stops exactly after the last
    sample (Girshick, Mosteller and Savage 1946). For the variance, the same holds for half the squared difference of
    the first two samples. Orders differ by the kinds of scores: 0, 1, between them, and undecided. Use the estimates
    for means over many turns; for a single turn, the drawn samples themselves say more.

    Args:
        plan: Plan by which the samples were drawn.
        scores: [num_drawn] in any order; None is undecided.
    """
    decided = sorted(Fraction(score) for score in scores if score is not None)
    return _estimate(plan, tuple(decided), len(scores) - len(decided))


@lru_cache(maxsize=1 << 14)
def _estimate(plan: EarlyStop, decided: tuple[Fraction, ...], num_undecided: int) -> Estimates | None:
    if not decided:
        return None
    counts = count_scores([*decided, *[None] * num_undecided])
    num_orders_by_first = _num_orders_by_first_kinds(plan, counts)
    num_orders = sum(num_orders_by_first.values())
    scores_by_kind = {
        kind: [score for score in decided if _kind(score) == kind] for kind in {_kind(score) for score in decided}
    }
    means = {kind: mean(scores) for kind, scores in scores_by_kind.items()}
    half_squares = {
        kinds: _half_squared_difference(*(scores_by_kind[kind] for kind in kinds)) for kinds in num_orders_by_first
    }
    num_full = plan.num_samples - num_undecided  # on average, the variance of K scores is (K - 1) / K of the true one
    return Estimates(
        pass_rate=Fraction(sum(num for kinds, num in num_orders_by_first.items() if kinds[0] == _RIGHT), num_orders),
        reward_mean=sum((num * means[kinds[0]] for kinds, num in num_orders_by_first.items()), Fraction()) / num_orders,
        reward_var=sum((num * half_squares[kinds] for kinds, num in num_orders_by_first.items()), Fraction())
        / num_orders
        * (num_full - 1)
        / num_full,
    )


def _num_orders_by_first_kinds(plan: EarlyStop, counts: ScoreCounts) -> Counter[tuple[int, ...]]:
    """{kinds of the first two decided samples: number of orders of the samples in which the plan stops at the end}"""
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


def _half_squared_difference(first: Sequence[Fraction], second: Sequence[Fraction] = ()) -> Fraction:
    """Mean of (x - y)^2 / 2 over all pairs of a score x of one kind and a score y of another; 0 without a second kind.

    Args:
        first: Scores of one kind.
        second: Scores of the other kind; the same object as `first` for pairs within one kind.
    """
    if not second:
        return Fraction()
    if first is second:
        return variance(first)
    return mean([(x - y) ** 2 for x in first for y in second]) / 2


def _kind(score: Fraction) -> int:
    return _WRONG if score == 0 else _RIGHT if score == 1 else _PARTIAL


class Statistics(NamedTuple):
    """Statistics of the scores of one turn; NaN where no sample was decided."""

    pass_rate: float
    reward_mean: float
    reward_std: float
    reward_var: float

    def as_dict(self) -> JsonObject:
        """The statistics as JSON, with null for NaN."""
        return {name: None if math.isnan(value) else value for name, value in self._asdict().items()}


def turn_statistics(profile: TurnProfile, early_stop: EarlyStop | None = None) -> Statistics:
    """Statistics of a turn's samples; with a plan of early stopping, unbiased estimates for all K samples.

    The drawn samples, not the estimates, decide whether the turn is a pivot: they had settled it when the plan stopped.
    """
    if early_stop is None:
        return Statistics(profile.pass_rate, profile.reward_mean, profile.reward_std, profile.reward_var)
    estimates = estimate(early_stop, [sample.verdict.score for sample in profile.samples])
    if estimates is None:
        return Statistics(math.nan, math.nan, math.nan, math.nan)
    pass_rate, mean, variance = map(float, estimates)
    return Statistics(pass_rate, mean, math.sqrt(variance), variance)
