"""Intervals, beside those of scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from verl_pivot.statistics import Interval, bootstrap_counts, paired_difference, percentile_interval, wilson_interval


@given(st.integers(1, 10_000).flatmap(lambda number: st.tuples(st.integers(0, number), st.just(number))))
def test_the_interval_of_a_share_is_that_of_wilson(counts: tuple[int, int]) -> None:
    num_right, number = counts

    low, high = wilson_interval(num_right / number, number)

    expected = stats.binomtest(num_right, number).proportion_ci(method="wilson", confidence_level=0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=2e-5)  # 1.96 is rounded
    assert 0.0 <= low <= num_right / number <= high <= 1.0


@pytest.mark.parametrize(("share", "number"), [(0.5, 0), (1.01, 10), (-0.01, 10), (float("nan"), 10)])
def test_what_is_no_share_has_no_interval(share: float, number: int) -> None:
    with pytest.raises(ValueError, match="has no interval"):
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
    """Gains are quarters, whose sums are exact in any order."""
    drawn = np.random.default_rng(3)
    baseline, arm = (drawn.integers(0, 5, 30) / 4 for _ in range(2))
    whole = percentile_interval(bootstrap_counts(30) @ (arm - baseline) / 30)

    monkeypatch.setattr("verl_pivot.statistics._BLOCK_SIZE", block_size)

    assert paired_difference(list(baseline), list(arm)) == ((arm - baseline).mean(), whole)
