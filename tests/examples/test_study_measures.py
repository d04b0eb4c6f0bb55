"""The study's measures without a verdict: values by hand, and a policy of two answers with a known exact gain."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.study.measures import (
    advantages,
    deviation,
    gain_in_mean,
    has_signal,
    last_third,
    length_of_step,
    rank_correlation,
    variance_of_batch,
    variance_within,
)


def test_only_rewards_that_differ_are_a_signal() -> None:
    assert [has_signal(rewards) for rewards in ([1.0, 1.0], [0.0, 1.0], [0.5], [])] == [False, True, False, False]


def test_a_deviation_is_that_of_the_population_and_exactly_0_for_equal_rewards() -> None:
    assert deviation([1.0, 0.0, 0.0, 0.0]) == pytest.approx(math.sqrt(3) / 4)
    assert deviation([0.1] * 3) == 0.0


def test_the_variance_of_a_batch_has_that_of_the_groups_means_too() -> None:
    """Variance within the groups: (0 + 1/4) / 2; of all four rewards, three of which are 1: 3/16."""
    groups = [[1.0, 1.0], [1.0, 0.0]]

    assert variance_within(groups) == pytest.approx(1 / 8)
    assert variance_of_batch(groups) == pytest.approx(3 / 16)


@pytest.mark.parametrize("groups", [[], [[]]])
def test_a_batch_without_rewards_has_no_variance(groups: list[list[float]]) -> None:
    for variance in (variance_within, variance_of_batch):
        with pytest.raises(ValueError, match="has no"):
            variance(groups)


@pytest.mark.parametrize(("num_steps", "first"), [(40, 27), (3, 3), (6, 5), (1, 1), (2, 2)])
def test_the_last_third_begins_behind_two_thirds(num_steps: int, first: int) -> None:
    assert last_third(range(num_steps, 0, -1), num_steps) == list(range(first, num_steps + 1))


def test_a_gain_is_the_change_of_the_mean_of_two_answers() -> None:
    """The right answer goes from 1/2 to 3/4, so that the mean reward rises by 1/4."""
    log_ratios = [math.log(1.5), math.log(0.5)]

    assert gain_in_mean(log_ratios, [1.0, 0.0], [1, 1]) == pytest.approx(0.25)
    assert gain_in_mean(log_ratios, [1.0, 0.0], [50, 50]) == pytest.approx(0.25)
    assert gain_in_mean(log_ratios, [1.0, 1.0], [1, 1]) == 0.0
    assert gain_in_mean([math.log(2.0), math.log(2 / 3)], [1.0, 0.0], [1, 3]) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="no answer was sampled"):
        gain_in_mean([], [], [])


def test_advantages_of_distinct_answers_add_up_to_nothing() -> None:
    """One of four samples is right, so the mean is 1/4: the advantages are 1/4 of 3/4, and 3/4 of -1/4."""
    assert advantages([1.0, 0.0], [1, 3]) == pytest.approx([3 / 16, -3 / 16])
    assert advantages([1.0, 1.0], [2, 5]) == [0.0, 0.0]


def test_ranks_of_equal_values_are_their_mean() -> None:
    """Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4 have the correlation 4.5 / sqrt(4.5 * 5)."""
    assert rank_correlation([1.0, 2.0, 2.0, 9.0], [0.0, 1.0, 2.0, 3.0]) == pytest.approx(4.5 / math.sqrt(22.5))
    assert rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == pytest.approx(-1.0)
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) is None
    assert rank_correlation([1.0], [1.0]) is None
    with pytest.raises(ValueError, match="cannot be ranked beside"):
        rank_correlation([1.0], [1.0, 2.0])


@given(
    curvature=st.floats(min_value=1e-6, max_value=1e6),
    cubic=st.floats(min_value=0.0, max_value=1.0),
    first=st.floats(min_value=1e-3, max_value=1e3),
)
def test_a_step_is_found_where_the_kl_grows_with_its_square(curvature: float, cubic: float, first: float) -> None:
    def kl(length: float) -> float:
        return curvature * length**2 * (1.0 + cubic * math.sqrt(curvature) * length)

    length = length_of_step(kl, 0.01, first)

    assert length is not None
    assert kl(length) == pytest.approx(0.01, rel=0.021)


def test_a_direction_that_changes_nothing_has_no_step_and_one_that_overflows_is_shortened() -> None:
    assert length_of_step(lambda length: 0.0, 0.01, 1.0) is None
    assert length_of_step(lambda length: math.nan, 0.01, 1.0) is None
    found = length_of_step(lambda length: length**2 if length < 1.0 else math.inf, 0.01, 1e6)
    assert found == pytest.approx(0.1, rel=0.011)


def exact_gain(chance: float, wanted_kl: float) -> float:
    """Gain in the probability of the right answer of a policy with one logit, by a step with KL `wanted_kl`."""

    def after(step: float) -> float:
        odds = chance / (1 - chance) * math.exp(step)
        return odds / (1 + odds)

    def kl(step: float) -> float:
        new = after(step)
        return chance * math.log(chance / new) + (1 - chance) * math.log((1 - chance) / (1 - new))

    step = length_of_step(kl, wanted_kl, 0.1)
    assert step is not None
    return after(step) - chance


@pytest.mark.parametrize("chance", [0.1, 0.3, 0.5])
def test_a_small_step_gains_the_deviation_times_the_root_of_twice_its_kl(chance: float) -> None:
    """Theorem 3.2 for a policy that can move freely: the gain per root of KL is the deviation of the reward."""
    expected = math.sqrt(2e-6) * math.sqrt(chance * (1 - chance))

    assert exact_gain(chance, 1e-6) == pytest.approx(expected, rel=0.02)
