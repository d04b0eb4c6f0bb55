"""Resampling on correct and dynamic sampling: which rollouts of a group stay, and which groups."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.resampling.dynamic_sampling import DropReason, EqualRewards, are_equal, drop_reason_of
from verl_pivot.resampling.roc import draw_as_in_paper, pick_as_released

GROUPS = st.integers(1, 40).flatmap(
    lambda size: st.tuples(
        st.lists(st.sampled_from([0.0, 1.0]), min_size=size, max_size=size),
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]), min_size=size, max_size=size),
        st.integers(1, size),
    )
)


def draw(scores: list[float], penalties: list[float], keep: int, seed: int = 0) -> list[int]:
    return draw_as_in_paper(scores, penalties, keep=keep, rng=random.Random(seed))


def test_the_paper_keeps_half_of_the_failures_and_the_clean_successes_first() -> None:
    scores = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    penalties = [0.9, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0]

    kept = draw(scores, penalties, keep=4)

    assert [index for index in kept if scores[index] > 0] == [2, 5]
    assert len([index for index in kept if scores[index] == 0]) == 2


@pytest.mark.parametrize(
    ("num_failures", "kept_failures"), [(0, 0), (1, 1), (2, 1), (3, 1), (7, 3), (15, 7), (31, 15), (32, 16)]
)
def test_the_paper_keeps_the_floor_of_half_the_failures_of_32_and_at_least_one(
    num_failures: int, kept_failures: int
) -> None:
    scores = [0.0] * num_failures + [1.0] * (32 - num_failures)

    kept = draw(scores, [0.5] * 32, keep=16)

    assert Counter(scores[index] for index in kept) == Counter({0.0: kept_failures, 1.0: 16 - kept_failures})


def test_the_paper_draws_successes_by_one_over_their_penalty() -> None:
    """One success of penalty 1, 2 or 4 is kept: the first with probability 1 / (1 + 1/2 + 1/4) = 4/7."""
    drawn = Counter(draw([1.0, 1.0, 1.0], [1.0, 2.0, 4.0], keep=1, seed=seed)[0] for seed in range(7_000))

    assert [round(drawn[index] / 1_000, 1) for index in range(3)] == [4.0, 2.0, 1.0]


def test_the_paper_draws_failures_uniformly_and_ignores_their_penalty() -> None:
    drawn = Counter(draw([0.0] * 4, [0.0, 1.0, 2.0, 2.0], keep=1, seed=seed)[0] for seed in range(4_000))

    assert [round(drawn[index] / 1_000, 1) for index in range(4)] == [1.0, 1.0, 1.0, 1.0]


def test_the_released_rule_takes_the_first_failures_and_the_cleanest_successes() -> None:
    scores = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    penalties = [0.0, 0.7, 0.0, 0.1, 0.0, 0.1, 0.0, 0.0]

    assert pick_as_released(scores, penalties, keep=4) == [0, 2, 3, 7]


@pytest.mark.parametrize(("num_failures", "kept_failures"), [(0, 0), (1, 1), (2, 2), (3, 2), (5, 2), (7, 4), (31, 15)])
def test_the_released_rule_rounds_to_even_and_keeps_at_least_two_of_each_outcome(
    num_failures: int, kept_failures: int
) -> None:
    scores = [0.0] * num_failures + [1.0] * (32 - num_failures)

    kept = pick_as_released(scores, [0.0] * 32, keep=16)

    assert sum(scores[index] == 0 for index in kept) == kept_failures


@given(st.integers(1, 20).map(lambda half: 2 * half), st.data())
def test_for_an_even_number_our_rule_equals_the_released_one(keep: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(keep + 1, 2 * keep + 8))
    num_failures = data.draw(st.integers(0, size))
    minimum = min(2, keep // 2)

    public = _public_numbers(num_failures, size - num_failures, keep, minimum)

    scores = [0.0] * num_failures + [1.0] * (size - num_failures)
    kept = pick_as_released(scores, [0.0] * size, keep=keep, min_failures=minimum, min_successes=minimum)
    ours = sum(scores[index] == 0 for index in kept)
    assert public is None or (ours, keep - ours) == public


def _public_numbers(num_failures: int, num_successes: int, keep: int, minimum: int) -> tuple[int, int] | None:
    """Numbers of failures and successes that the code of microsoft/rStar keeps; None where its assert fails."""
    size = num_failures + num_successes
    failures, successes = round(num_failures * keep / size), round(num_successes * keep / size)
    if failures <= min(minimum, num_failures):
        failures = min(minimum, num_failures)
        successes = keep - failures
    if successes <= min(minimum, num_successes):
        successes = min(minimum, num_successes)
        failures = keep - successes
    return (failures, successes) if failures + successes == keep else None


def test_our_rule_keeps_the_exact_number_where_the_released_assert_fails() -> None:
    scores = [0.0] * 4 + [1.0] * 4

    assert _public_numbers(4, 4, 7, 2) is None
    assert len(pick_as_released(scores, [0.0] * 8, keep=7)) == 7


@given(GROUPS, st.integers(0, 3))
def test_both_rules_keep_exactly_the_asked_number_and_both_outcomes(
    group: tuple[list[float], list[float], int], seed: int
) -> None:
    scores, penalties, keep = group
    minimum = min(1, keep // 2)

    drawn = draw(scores, penalties, keep, seed)
    picked = pick_as_released(scores, penalties, keep=keep, min_failures=minimum, min_successes=minimum)

    for kept in (drawn, picked):
        assert kept == sorted(set(kept))
        assert len(kept) == keep
        assert keep < 2 or {scores[index] for index in kept} == set(scores)


@given(GROUPS)
def test_the_same_seed_draws_the_same(group: tuple[list[float], list[float], int]) -> None:
    assert draw(*group) == draw(*group)


@pytest.mark.parametrize("keep", [0, 3])
def test_the_message_about_an_impossible_keep_names_both_numbers(keep: int) -> None:
    with pytest.raises(ValueError, match=rf"keep must be in \[1, 2\].*got {keep}"):
        draw([1.0, 0.0], [0.0, 0.0], keep=keep)


def test_missing_penalties_and_minima_beyond_the_group_are_refused() -> None:
    with pytest.raises(ValueError, match="got 2 scores but 1 penalties"):
        pick_as_released([1.0, 0.0], [0.0], keep=1)
    with pytest.raises(ValueError, match=r"min_failures \+ min_successes = 4 exceeds keep = 3"):
        pick_as_released([1.0, 0.0, 0.0], [0.0] * 3, keep=3)


def drop_reason(scores: list[float], rule: EqualRewards, *, keep: int = 4, seed: int = 0) -> DropReason | None:
    return drop_reason_of(scores, keep=keep, equal_rewards=rule, rng=random.Random(seed))


def test_a_group_with_too_few_usable_rollouts_is_dropped_under_every_rule() -> None:
    assert {drop_reason([1.0, 0.0, 1.0], rule) for rule in EqualRewards} == {DropReason.TOO_FEW}
    assert drop_reason([], EqualRewards.KEEP) is DropReason.TOO_FEW


def test_groups_of_equal_rewards_are_kept_dropped_or_dropped_half_of_the_time() -> None:
    equal, mixed = [1.0] * 4, [1.0, 1.0, 0.0, 1.0]

    assert drop_reason(equal, EqualRewards.KEEP) is None
    assert drop_reason(equal, EqualRewards.DROP) is DropReason.EQUAL_REWARDS
    assert {drop_reason(mixed, rule) for rule in EqualRewards} == {None}
    outcomes = Counter(drop_reason(equal, EqualRewards.KEEP_HALF, seed=seed) for seed in range(1_000))
    assert 450 < outcomes[None] < 550


def test_rewards_that_differ_by_rounding_alone_are_equal() -> None:
    assert are_equal([0.1 + 0.2, 0.3])
    assert not are_equal([0.3, 0.31])
