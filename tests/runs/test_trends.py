"""runs.trends: correlations and exponents of series over steps, exact, and what drift alone makes of them."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.runs.trends import SeedRange, Trend, block_means, difference_trend, level_trend, seed_range

STEPS = [float(step) for step in range(1, 41)]


def near(*values: float | None) -> Any:
    """A tuple that equals every tuple of nearly the same numbers."""
    return tuple(None if value is None else pytest.approx(value) for value in values)


def test_a_power_law_has_its_exponent_and_rank_correlation_one() -> None:
    trend = level_trend(STEPS, [3.0 * step**0.5 for step in STEPS])

    assert trend == near(1.0, 40, 0.5, 40)
    falling = level_trend(STEPS, [3.0 * step**-2 for step in STEPS])
    assert (falling.rho, falling.slope) == near(-1.0, -2.0)


def test_spearmans_rho_is_that_of_the_textbook() -> None:
    """1 - 6 * sum of squared differences of ranks / (n * (n^2 - 1)), here with differences 1, 1, 1, 1 and 0."""
    assert level_trend([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]).rho == pytest.approx(1 - 6 * 4 / (5 * 24))


def test_zeros_have_a_rank_and_no_logarithm() -> None:
    trend = level_trend([0, 1, 2, 4], [0, 0, 5, 10])

    assert (trend.num_points, trend.num_logarithms, trend.slope) == (4, 2, None)
    assert trend.rho == pytest.approx(0.948683, abs=1e-6)  # 3 / sqrt(10): of ranks 1 2 3 4 and 1.5 1.5 3 4


@pytest.mark.parametrize("series", [([], []), ([1.0], [2.0]), ([1.0, 2.0], [1.0, 2.0]), ([1.0] * 9, STEPS[:9])])
def test_too_few_points_or_a_constant_tell_nothing(series: tuple[list[float], list[float]]) -> None:
    trend = level_trend(*series)

    assert (trend.rho, trend.slope) == (None, None)
    constant = level_trend(STEPS, [7.0] * 40)
    assert (constant.rho, constant.slope) == near(None, 0.0)


def test_blocks_are_means_of_successive_steps_and_the_rest_is_left_out() -> None:
    assert block_means([1, 3, 5, 7, 9], 2) == [2, 6]
    assert block_means([1, 3, 5], 1) == [1, 3, 5]
    assert block_means([1, 3, 5], 4) == []


def test_two_series_that_only_drift_correlate_in_levels_and_not_in_changes() -> None:
    """Around the same rise, one series swings by the pattern + - and the other by + + - -."""
    first = [step + (0.4 if step % 2 else -0.4) for step in range(1, 42)]
    second = [step + (0.4 if step % 4 < 2 else -0.4) for step in range(1, 42)]

    assert level_trend(first, second).rho == pytest.approx(1.0, abs=0.01)
    assert difference_trend(first, second, 1).rho == pytest.approx(0.0, abs=0.06)


def test_changes_are_those_of_the_means_of_blocks() -> None:
    """Means of blocks 1, 2, 4, 5 and 10, 30, 40, 90: changes 1, 2, 1 and 20, 10, 50."""
    first = [1, 1, 2, 2, 4, 4, 5, 5, 99]
    second = [0, 20, 20, 40, 30, 50, 80, 100, 99]

    trend = difference_trend(first, second, 2)

    xs, ys = [math.log(2), math.log(2), math.log(5 / 4)], [math.log(3), math.log(4 / 3), math.log(9 / 4)]
    mean_x, mean_y = sum(xs) / 3, sum(ys) / 3
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)
    assert trend == near(-math.sqrt(3) / 2, 3, slope, 3)


def test_fewer_than_four_blocks_tell_nothing_of_changes() -> None:
    trend = difference_trend(STEPS[:39], STEPS[:39], 10)

    assert trend == Trend(None, 2, None, 2)
    assert difference_trend(STEPS, [step**2 for step in STEPS], 10).num_points == 3


def test_a_range_is_over_the_seeds_that_have_a_value() -> None:
    assert seed_range([0.5, None, -0.25]) == SeedRange(-0.25, 0.5, 2)
    assert seed_range([None, None]) is None


counts = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=60)


@given(counts, st.integers(1, 5))
def test_rho_lies_within_one_and_the_scale_of_a_series_changes_neither_statistic(
    points: list[tuple[int, int]], block_size: int
) -> None:
    first, second = [float(x) for x, _ in points], [float(y) for _, y in points]
    scaled = [8 * y for y in second]

    for trend, of_scaled in (
        (level_trend(first, second), level_trend(first, scaled)),
        (difference_trend(first, second, block_size), difference_trend(first, scaled, block_size)),
    ):
        assert trend.rho is None or -1.000001 <= trend.rho <= 1.000001
        assert trend.num_logarithms <= trend.num_points
        assert (trend.rho is None, trend.slope is None) == (of_scaled.rho is None, of_scaled.slope is None)
        if trend.slope is not None:
            assert of_scaled.slope == pytest.approx(trend.slope, rel=1e-6, abs=1e-6)
