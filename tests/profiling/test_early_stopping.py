"""Early stopping changes no decision of a filter, and its estimates are unbiased, shown by exact arithmetic."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_pivot.errors import ConfigError
from verl_pivot.profiling.early_stopping import EarlyStop, Estimates, count_scores, estimate, turn_statistics
from verl_pivot.types import Sample, TurnProfile, Verdict

BINARY = (Fraction(0), Fraction(1))
PLANS = [
    EarlyStop(filter="pivots", stages=(2, 4)),
    EarlyStop(filter="pivots", stages=(4, 8)),
    EarlyStop(filter="pivots", stages=(2, 3, 4, 5, 6)),
    EarlyStop(filter="pivots", stages=(3, 6), lambda_diff=0.5),
    EarlyStop(filter="pivots", stages=(2, 4, 6, 8), lambda_diff=0.6),
    EarlyStop(filter="pivots", stages=(2, 5), lambda_diff=0.2),
    EarlyStop(filter="unsolved", stages=(2, 4)),
    EarlyStop(filter="unsolved", stages=(2, 3, 4, 5, 6, 7, 8)),
]


def drawn(plan: EarlyStop, scores: Sequence[Fraction | None]) -> tuple[Fraction | None, ...]:
    """Scores that the plan draws of a turn whose K samples would have `scores`."""
    return next(tuple(scores[:n]) for n in plan.stages if plan.ends_at(count_scores(scores[:n])))


def outcomes(
    plan: EarlyStop, law: dict[Fraction | None, Fraction]
) -> Iterator[tuple[tuple[Fraction | None, ...], Fraction]]:
    """Every sequence of K scores with its probability."""
    for scores in product(law, repeat=plan.num_samples):
        yield scores, math.prod((law[score] for score in scores), start=Fraction(1))


def expectation(plan: EarlyStop, law: dict[Fraction | None, Fraction]) -> Estimates:
    """Expectation of the estimates over all sequences with a decided sample.

    Args:
        plan: Plan of early stopping.
        law: {score: its probability}.
    """
    sums, total = [Fraction()] * 3, Fraction()
    for scores, probability in outcomes(plan, law):
        if (estimates := estimate(plan, drawn(plan, scores))) is not None:
            total += probability
            sums = [before + probability * value for before, value in zip(sums, estimates, strict=True)]
    return Estimates(*(value / total for value in sums))


@pytest.mark.parametrize("p", [Fraction(1, 10), Fraction(1, 2), Fraction(6, 7)])
@pytest.mark.parametrize("plan", PLANS)
def test_the_expectation_of_the_estimates_is_exactly_that_of_k_samples(plan: EarlyStop, p: Fraction) -> None:
    k = plan.num_samples

    assert expectation(plan, {BINARY[0]: 1 - p, BINARY[1]: p}) == (p, p, p * (1 - p) * (k - 1) / k)


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan.num_samples <= 6])
def test_estimates_from_partial_scores_are_unbiased(plan: EarlyStop) -> None:
    law: dict[Fraction | None, Fraction] = {
        Fraction(0): Fraction(2, 7),
        Fraction(1, 4): Fraction(1, 7),
        Fraction(1, 2): Fraction(1, 7),
        Fraction(1): Fraction(3, 7),
    }
    mean = sum((score * p for score, p in law.items() if score is not None), Fraction())
    variance = sum((score**2 * p for score, p in law.items() if score is not None), Fraction()) - mean**2
    k = plan.num_samples

    assert expectation(plan, law) == (Fraction(3, 7), mean, variance * (k - 1) / k)


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan.num_samples <= 6])
def test_undecided_samples_do_not_bias_the_means(plan: EarlyStop) -> None:
    law = {Fraction(0): Fraction(3, 10), Fraction(1): Fraction(1, 2), None: Fraction(1, 5)}

    assert expectation(plan, law)[:2] == (Fraction(5, 8), Fraction(5, 8))


def test_the_mean_of_the_drawn_samples_would_be_biased() -> None:
    plan, p = EarlyStop(filter="pivots", stages=(2, 4)), Fraction(3, 4)
    means = [
        probability * Fraction(sum(score or 0 for score in seen)) / len(seen)
        for scores, probability in outcomes(plan, {BINARY[0]: 1 - p, BINARY[1]: p})
        for seen in [drawn(plan, scores)]
    ]

    assert sum(means) == Fraction(45, 64)


@st.composite
def plans(draw: st.DrawFn) -> EarlyStop:
    stages = draw(st.sets(st.integers(2, 6), min_size=1))
    lambda_diff = draw(st.floats(0.05, 1.0))
    return EarlyStop(
        filter=draw(st.sampled_from(["pivots", "unsolved"])), stages=tuple(sorted(stages)), lambda_diff=lambda_diff
    )


@settings(deadline=None)
@given(plans(), st.fractions(Fraction(1, 20), Fraction(19, 20), max_denominator=20))
def test_the_estimates_of_any_plan_are_unbiased(plan: EarlyStop, p: Fraction) -> None:
    k = plan.num_samples

    assert expectation(plan, {BINARY[0]: 1 - p, BINARY[1]: p}) == (p, p, p * (1 - p) * (k - 1) / k)


@settings(deadline=None)
@given(plans(), st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, None]), min_size=6, max_size=6))
def test_the_drawn_samples_settle_what_the_filter_decides_on_all(plan: EarlyStop, scores: list[float | None]) -> None:
    def is_kept(samples: Sequence[float | None]) -> bool:
        decided = [score for score in samples if score is not None]
        if plan.filter == "unsolved":
            return bool(decided) and min(decided) < 1.0
        return bool(decided) and min(decided) < max(decided) and sum(decided) / len(decided) < plan.lambda_diff

    everything = scores[: plan.num_samples]
    seen = next(everything[:n] for n in plan.stages if plan.ends_at(count_scores(everything[:n])))

    assert is_kept(seen) == is_kept(everything)


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(0.0, 1.0)), min_size=2, max_size=9))
def test_a_plan_of_one_stage_changes_no_statistic(scores: list[float | None]) -> None:
    samples = tuple(Sample(text="", verdict=Verdict(score=score, reason=""), num_tokens=0) for score in scores)
    profile = TurnProfile(trajectory_id="t", index=0, samples=samples, num_prompt_tokens=1)
    plan = EarlyStop(filter="pivots", stages=(len(scores),))

    assert turn_statistics(profile, plan) == pytest.approx(turn_statistics(profile), nan_ok=True)


@pytest.mark.parametrize(
    ("scores", "mean", "variance"),
    [
        ([1.0, 0.0], 0.5, 0.375),  # stopped after two: (1 - 0)^2 / 2, times (K - 1) / K
        ([1.0, 1.0, 1.0, 0.0], 1.0, 0.0),  # went on, so the first two were right
        ([0.0, 1.0, 0.0, 1.0], 0.5, 0.0),  # went on: two right ones first, or two wrong ones
        ([0.0, 0.0, 0.0, 0.0], 0.0, 0.0),
        ([None, 1.0, 0.0, 0.0], 0.25, 1 / 6),  # None aside, 2 of 8 orders begin with 1, and 4 with 1 and 0 or 0 and 1
    ],
)
def test_estimates_by_hand(scores: list[float | None], mean: float, variance: float) -> None:
    estimates = estimate(EarlyStop(filter="pivots", stages=(2, 4)), scores)

    assert estimates is not None
    assert (float(estimates.reward_mean), float(estimates.reward_var)) == pytest.approx((mean, variance))


def test_without_a_decided_sample_there_is_no_estimate() -> None:
    assert estimate(PLANS[0], [None, None, None, None]) is None


@pytest.mark.parametrize(
    ("stages", "lambda_diff", "message"),
    [
        ((), 1.0, r"--stages must rise from at least 2 to --samples, got \[\]"),
        ((1, 4), 1.0, r"at least 2 to --samples, got \[1, 4\]"),
        ((4, 4), 1.0, r"got \[4, 4\]"),
        ((2, 4), 0.0, r"--lambda-diff must lie in \(0, 1\], got 0.0"),
    ],
)
def test_impossible_plans_are_refused(stages: tuple[int, ...], lambda_diff: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EarlyStop(filter="pivots", stages=stages, lambda_diff=lambda_diff)


@pytest.mark.parametrize(
    ("plan", "keep", "lambda_diff"),
    [("pivots", "pivots", 0.5), ("unsolved", "pivots", 1.0), ("pivots", "unsolved", 1.0)],
)
def test_a_profile_that_stopped_early_decides_its_own_rule_alone(
    plan: Literal["pivots", "unsolved"], keep: str, lambda_diff: float
) -> None:
    early_stop = EarlyStop(filter=plan, stages=(4, 8))

    with pytest.raises(ConfigError, match=f"stopped sampling a turn once --keep {plan}.*does not decide --keep {keep}"):
        early_stop.check_decides(keep, lambda_diff)
    early_stop.check_decides(plan, 1.0)
    early_stop.check_decides("all", lambda_diff)
