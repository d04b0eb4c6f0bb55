"""Intervals, p-values and verdicts, against those of scipy and of publications."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from verl_pivot.statistics import (
    ClaimVerdict,
    Interval,
    Region,
    SeededEstimate,
    bootstrap_counts,
    bootstrap_means,
    first_reaching,
    holm,
    monotone,
    p_inside,
    p_inside_by_t,
    paired_difference,
    percentile_interval,
    seeded_difference,
    t_interval,
    verdict_of,
    wilson_interval,
)


@given(st.integers(1, 10_000).flatmap(lambda number: st.tuples(st.integers(0, number), st.just(number))))
def test_the_interval_of_a_share_is_that_of_wilson(counts: tuple[int, int]) -> None:
    num_right, number = counts

    low, high = wilson_interval(num_right / number, number)

    expected = stats.binomtest(num_right, number).proportion_ci(method="wilson", confidence_level=0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=2e-5)  # 1.96 is rounded
    assert 0.0 <= low <= num_right / number <= high <= 1.0


@pytest.mark.parametrize(("share", "number"), [(0.5, 0), (1.01, 10), (-0.01, 10), (float("nan"), 10)])
def test_what_is_no_share_has_no_interval(share: float, number: int) -> None:
    with pytest.raises(ValueError, match="an interval needs a share"):
        wilson_interval(share, number)


def test_a_paired_difference_agrees_with_scipy() -> None:
    drawn = np.random.default_rng(7)
    baseline = (drawn.random(500) < 0.5).astype(float)
    arm = np.where(drawn.random(500) < 0.2, 1.0, baseline)

    value, (low, high) = paired_difference(list(baseline), list(arm))

    judge = stats.bootstrap(((arm - baseline),), np.mean, method="percentile", random_state=1, n_resamples=10_000)
    assert value == pytest.approx((arm - baseline).mean())
    assert (low, high) == pytest.approx(tuple(judge.confidence_interval), abs=0.004)
    assert low > 0.0


def test_questions_that_both_arms_answer_alike_leave_no_doubt() -> None:
    scores = [0.0, 1.0, 1.0, 0.0]

    assert paired_difference(scores, scores) == (0.0, Interval(0.0, 0.0))
    assert paired_difference([0.0] * 4, [1.0] * 4) == (1.0, Interval(1.0, 1.0))
    assert paired_difference([False] * 4, [True] * 4) == (1.0, Interval(1.0, 1.0))


@pytest.mark.parametrize(("baseline", "arm"), [([], []), ([1.0], [1.0, 0.0]), ([1.0], [])])
def test_scores_of_different_questions_are_not_paired(baseline: list[float], arm: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference(baseline, arm)


def test_all_arms_are_drawn_the_same_questions() -> None:
    counts = bootstrap_counts(20)

    assert counts.shape == (10_000, 20)
    assert set(counts.sum(axis=1)) == {20}
    assert (counts == bootstrap_counts(20)).all()
    assert percentile_interval(np.arange(1001)) == (25.0, 975.0)


@pytest.mark.parametrize("block_size", [1, 21, 200_000])
def test_a_paired_difference_is_the_same_in_however_many_blocks_it_is_drawn(
    block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gains are multiples of a quarter, whose sums are exact in any order."""
    drawn = np.random.default_rng(3)
    baseline, arm = (drawn.integers(0, 5, 30) / 4 for _ in range(2))
    whole = percentile_interval(bootstrap_counts(30) @ (arm - baseline) / 30)

    monkeypatch.setattr("verl_pivot.statistics._BLOCK_SIZE", block_size)

    assert paired_difference(list(baseline), list(arm)) == ((arm - baseline).mean(), whole)


def test_means_of_drawn_tasks_have_the_spread_that_scipy_finds() -> None:
    draw = np.random.default_rng(5)
    outcomes = np.stack([draw.random(400) < 0.3, draw.random(400) < 0.7], axis=1)

    means = bootstrap_means(outcomes)

    judge = stats.bootstrap((outcomes[:, 0],), np.mean, method="percentile", random_state=1, n_resamples=10_000)
    assert means.shape == (10_000, 2)
    assert percentile_interval(means[:, 0]) == pytest.approx(tuple(judge.confidence_interval), abs=0.006)
    assert np.allclose(means * 400, np.round(means * 400))  # each mean is over 400 tasks


def test_sets_of_tasks_are_drawn_independently_and_one_set_alike_each_time() -> None:
    outcomes = np.arange(50)[:, None]

    first, again, other = (bootstrap_means(outcomes, stream)[:, 0] for stream in (0, 0, 1))

    assert (first == again).all()
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.04


def test_columns_of_a_task_are_drawn_together() -> None:
    outcomes = np.random.default_rng(2).random((30, 1))

    means = bootstrap_means(np.concatenate([outcomes, 1 - outcomes], axis=1))

    assert means.sum(axis=1) == pytest.approx(np.ones(10_000))


@pytest.mark.parametrize("outcomes", [[], [1.0, 0.0], np.empty((0, 2))])
def test_what_are_no_outcomes_of_tasks_is_refused(outcomes: list[float]) -> None:
    with pytest.raises(ValueError, match="outcomes must have the shape"):
        bootstrap_means(outcomes)


def test_seeds_and_domains_weigh_alike_whatever_their_number_of_tasks() -> None:
    small, large = ([0, 0], [1, 1]), ([0] * 10, [0] * 5 + [1] * 5)

    estimate = seeded_difference([[small, large], [large, large]])

    assert estimate.by_seed == (0.75, 0.5)
    assert estimate.value == 0.625
    assert estimate.drawn.mean() == pytest.approx(0.625, abs=0.003)
    # Three of the four sets have ten tasks with gains 0 or 1: a mean has variance 0.25 / 10, and weight 1 / 4.
    assert estimate.drawn.std() == pytest.approx((3 * 0.025 / 16) ** 0.5, rel=0.03)


def test_a_seeded_difference_of_one_set_of_tasks_is_the_paired_difference() -> None:
    draw = np.random.default_rng(9)
    baseline, arm = (list((draw.random(300) < share).astype(float)) for share in (0.4, 0.5))

    estimate, pair = seeded_difference([[(baseline, arm)]]), paired_difference(baseline, arm)

    assert estimate.value == pytest.approx(pair.value)
    assert estimate.over_tasks == pytest.approx(tuple(pair.interval), abs=0.006)
    assert estimate.over_trainings is None


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([], "needs at least one seed"),
        ([[]], "needs at least one seed"),
        ([[([1], [0])], []], "needs at least one seed"),
        ([[([1, 0], [1])]], "2 outcomes of one arm cannot be paired with 1 of another"),
    ],
)
def test_a_difference_that_lacks_something_is_refused(
    pairs: list[list[tuple[list[int], list[int]]]], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        seeded_difference(pairs)


@pytest.mark.parametrize(("number", "quantile"), [(2, 12.706), (3, 4.303), (4, 3.182), (10, 2.262)])
def test_the_interval_of_a_mean_has_the_quantiles_of_the_published_table(number: int, quantile: float) -> None:
    """Values with mean 0 and standard error 1; the quantiles are those of the tables of Student's t at 97.5 %."""
    values = np.arange(number) - (number - 1) / 2
    values *= number**0.5 / values.std(ddof=1)

    assert t_interval(list(values)) == pytest.approx((-quantile, quantile), abs=5e-4)


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    values = [0.031, 0.058, 0.044]

    judge = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)

    assert t_interval(values) == pytest.approx((judge.low, judge.high))
    with pytest.raises(ValueError, match="needs at least two values"):
        t_interval([0.1])


@pytest.mark.parametrize(
    ("p_values", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),  # Wikipedia's example of Holm's method
        ([0.50, 0.003, 0.32, 0.054, 0.0003], [0.64, 0.012, 0.64, 0.162, 0.0015]),  # manual of pingouin
        ([0.319, 0.201, 0.4, 0.374, 0.113], [0.957, 0.804, 0.957, 0.957, 0.565]),  # manual of stdlib
        ([0.02], [0.02]),
        ([], []),
    ],
)
def test_holms_correction_gives_the_published_values(p_values: list[float], adjusted: list[float]) -> None:
    assert holm(p_values) == pytest.approx(adjusted)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holms_correction_keeps_the_order_and_raises_the_least_as_bonferroni_does(ps: list[float]) -> None:
    adjusted = holm(ps)

    assert all(p <= each <= 1.0 for p, each in zip(ps, adjusted, strict=True))
    assert min(adjusted) == min(1.0, len(ps) * min(ps))  # the least p-value is corrected as by Bonferroni
    assert [adjusted[i] for i in np.argsort(ps, kind="stable")] == sorted(adjusted)


@pytest.mark.parametrize(
    ("mean", "standard_error", "degrees", "bound", "p"),
    [  # outputs of TOSTER, published by its users
        (-0.3200000, 0.3945124, 27.91398, 0.5, 0.32586680),
        (-0.5767196, 0.2852542, 51.69508, 1.0, 0.07195754),
    ],
)
def test_two_one_sided_tests_give_the_published_p_value(
    mean: float, standard_error: float, degrees: float, bound: float, p: float
) -> None:
    assert p_inside_by_t(mean, standard_error, degrees, Region(-bound, bound)) == pytest.approx(p, abs=1e-6)


def test_one_bound_alone_is_the_one_sided_test() -> None:
    values = [0.031, 0.058, 0.044]
    error = float(np.std(values, ddof=1)) / 3**0.5

    judge = stats.ttest_1samp(values, 0.02, alternative="greater").pvalue

    assert p_inside_by_t(float(np.mean(values)), error, 2, Region(low=0.02)) == pytest.approx(judge)


def test_a_p_value_of_draws_is_the_share_of_those_outside_of_the_worse_bound() -> None:
    drawn = np.arange(100)

    assert p_inside(drawn, Region(low=9)) == 11 / 101  # 0 to 9 are outside, and 1 is added
    assert p_inside(drawn, Region(low=9, high=80)) == 21 / 101  # 80 to 99 are outside, and 1 is added
    assert p_inside(drawn, Region(low=-1)) == 1 / 101
    assert p_inside(drawn, Region(low=200)) == 1.0


def estimate(*by_seed: float, spread: float = 0.001) -> SeededEstimate:
    value = float(np.mean(by_seed))
    return SeededEstimate(value=value, by_seed=by_seed, drawn=value + spread * np.linspace(-1, 1, 10_000))


ABOVE, NEAR = Region(low=0.0), Region(low=-0.02, high=0.02)


@pytest.mark.parametrize(
    ("parts", "p", "verdict"),
    [
        ([(estimate(0.04, 0.05, 0.03), ABOVE)], 0.01, ClaimVerdict.HOLDS),
        ([(estimate(0.04, 0.05, 0.03), ABOVE)], 0.05, ClaimVerdict.UNDECIDED),  # not significant
        ([(estimate(0.09, 0.05, -0.01), ABOVE)], 0.01, ClaimVerdict.UNDECIDED),  # one seed disagrees
        ([(estimate(-0.03, -0.04), ABOVE)], 1.0, ClaimVerdict.DOES_NOT_HOLD),
        ([(estimate(-0.03, -0.04, spread=0.1), ABOVE)], 1.0, ClaimVerdict.UNDECIDED),
        ([(estimate(0.0, 0.0, spread=0.0), ABOVE)], 1.0, ClaimVerdict.UNDECIDED),  # equal outcomes refute nothing
        ([(estimate(-0.001, -0.001), ABOVE)], 1.0, ClaimVerdict.DOES_NOT_HOLD),
        ([(estimate(-0.001, -0.001, spread=0.0011), ABOVE)], 1.0, ClaimVerdict.UNDECIDED),
        ([(estimate(-0.09, -0.05, 0.01), ABOVE)], 1.0, ClaimVerdict.UNDECIDED),  # it holds for one seed
        ([(estimate(0.04), ABOVE), (estimate(0.005), NEAR)], 0.01, ClaimVerdict.HOLDS),
        ([(estimate(0.04), ABOVE), (estimate(-0.05), NEAR)], 1.0, ClaimVerdict.DOES_NOT_HOLD),
        ([(estimate(0.04), ABOVE), (estimate(0.05), NEAR)], 1.0, ClaimVerdict.DOES_NOT_HOLD),
        ([(estimate(0.04), ABOVE), (estimate(0.01, spread=0.02), NEAR)], 0.2, ClaimVerdict.UNDECIDED),
    ],
)
def test_a_claim_holds_does_not_hold_or_is_undecided(
    parts: list[tuple[SeededEstimate, Region]], p: float, verdict: ClaimVerdict
) -> None:
    assert verdict_of(parts, p) == verdict


def test_a_claim_without_parts_has_no_verdict() -> None:
    with pytest.raises(ValueError, match="needs at least one part"):
        verdict_of([], 0.01)


def test_a_level_is_reached_at_the_first_evaluation_that_has_it_or_never() -> None:
    curves = [[0.1, 0.5, 0.4, 0.6], [0.1, 0.2, 0.3, 0.3], [0.7, 0.1, 0.1, 0.1]]

    assert list(first_reaching(curves, [0.45, 0.45, 0.45])) == [1, -1, 0]
    assert list(first_reaching(curves, [0.6, 0.3, 0.8])) == [3, 2, -1]
    assert monotone(curves).tolist() == [[0.1, 0.5, 0.5, 0.6], [0.1, 0.2, 0.3, 0.3], [0.7, 0.7, 0.7, 0.7]]
    assert list(first_reaching(monotone(curves), [0.45, 0.45, 0.45])) == [1, -1, 0]
