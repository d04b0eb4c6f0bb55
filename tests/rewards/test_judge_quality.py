"""Agreement of a judge's scores with labels, on numbers worked out by hand and against plain loops."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.rewards.judge_quality import (
    CalibrationBin,
    PairAgreement,
    calibration,
    calibration_error,
    pair_agreement,
    rank_correlation,
)

grades = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])
turns = st.lists(st.tuples(grades, grades, st.sampled_from(["a", "b"])), max_size=12)


def test_pairs_of_equal_labels_do_not_count_and_ties_are_not_right() -> None:
    agreement = pair_agreement([0.9, 0.9, 0.2, 0.8], [1.0, 0.0, 0.0, 0.5], [""] * 4)

    assert agreement == PairAgreement(num_pairs=5, num_right=3, num_tied=1)
    assert agreement.accuracy == 0.6


def test_only_turns_of_the_same_group_are_pairs() -> None:
    assert pair_agreement([0.1, 0.9], [0.0, 1.0], ["a", "b"]).accuracy is None


@given(turns)
def test_pairs_are_those_of_a_plain_loop(drawn: list[tuple[float, float, str]]) -> None:
    pairs = [(one, two) for one, two in combinations(drawn, 2) if one[2] == two[2] and one[1] != two[1]]
    right = [(one, two) for one, two in pairs if (one[0] - two[0]) * (one[1] - two[1]) > 0.0]
    tied = [(one, two) for one, two in pairs if one[0] == two[0]]

    agreement = pair_agreement(*([each[k] for each in drawn] for k in range(3)))  # type: ignore[arg-type]  # columns

    assert agreement == PairAgreement(num_pairs=len(pairs), num_right=len(right), num_tied=len(tied))


@given(turns)
def test_the_order_of_turns_makes_no_difference(drawn: list[tuple[float, float, str]]) -> None:
    one, other = (
        pair_agreement([each[0] for each in order], [each[1] for each in order], [each[2] for each in order])
        for order in (drawn, drawn[::-1])
    )

    assert one == other


def test_rank_correlation_is_spearmans() -> None:
    assert rank_correlation([0.1, 0.2, 0.9], [0.0, 0.5, 1.0]) == pytest.approx(1.0)
    assert rank_correlation([0.9, 0.2, 0.1], [0.0, 0.5, 1.0]) == pytest.approx(-1.0)
    assert rank_correlation([0.1, 0.2, 0.3, 0.4], [0.1, 0.3, 0.2, 0.4]) == pytest.approx(0.8)
    assert rank_correlation([0.5, 0.5], [0.0, 1.0]) is None
    assert rank_correlation([], []) is None


def test_calibration_has_a_bin_for_each_tenth_with_a_turn() -> None:
    bins = calibration([0.0, 0.05, 1.0, 0.95], [0.0, 0.1, 1.0, 0.5])

    assert bins == [
        CalibrationBin(least=0.0, most=0.1, num_turns=2, mean_score=0.025, mean_label=0.05),
        CalibrationBin(least=0.9, most=1.0, num_turns=2, mean_score=0.975, mean_label=0.75),
    ]
    assert calibration_error(bins) == pytest.approx((2 * 0.025 + 2 * 0.225) / 4)


def test_a_judge_that_gives_the_labels_is_calibrated() -> None:
    assert calibration_error(calibration([0.1, 0.7, 1.0], [0.1, 0.7, 1.0])) == 0.0
