"""Prompts that a step generates ahead: as many as the last steps say, within the budget, each used once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.resampling.prefetch import Prefetch, num_ahead


@pytest.mark.parametrize(
    ("batch_size", "num_used", "num_dropped", "expected"),
    [
        (512, 512, 0, 0),  # nothing was dropped
        (512, 0, 0, 0),  # the first step
        (512, 512, 512, 480),  # 1024 are needed on average; less a deviation of 32; less 512
        (512, 512, 1195, 1131),  # 70 % dropped: 1707 - 63.1 - 512 in the same way
        (6, 6, 6, 2),
        (2, 100, 1, 0),
    ],
)
def test_one_deviation_less_than_the_average_need_is_generated_ahead(
    batch_size: int, num_used: int, num_dropped: int, expected: int
) -> None:
    assert num_ahead(batch_size, num_used=num_used, num_dropped=num_dropped, budget=20 * batch_size) == expected


@given(st.integers(1, 600), st.integers(0, 5000), st.integers(0, 50_000), st.integers(2, 20))
def test_no_step_generates_more_than_its_budget(batch: int, used: int, dropped: int, max_batches: int) -> None:
    assert 0 <= num_ahead(batch, num_used=used, num_dropped=dropped, budget=max_batches * batch) <= max_batches * batch


@given(st.lists(st.integers(1, 9)), st.integers(1, 40))
def test_prompts_generated_ahead_and_later_ones_replace_every_dropped_group_once(drops: list[int], batch: int) -> None:
    prefetch = Prefetch()
    prefetch.end(batch, 3 * batch)
    ahead = prefetch.begin(batch, 20 * batch)

    later = sum(prefetch.replace(number) for number in drops)

    assert ahead + later == sum(drops) + prefetch.num_left
    assert later == 0 or prefetch.num_left == 0


def test_seldom_more_groups_are_usable_than_needed_and_most_replacements_are_ahead() -> None:
    rng = random.Random(1)
    ahead = num_ahead(128, num_used=128, num_dropped=128, budget=2560)
    needed = [_needed(rng, 128, 0.5) for _ in range(400)]

    assert 0.1 < sum(each < 128 + ahead for each in needed) / 400 < 0.22  # one deviation below the mean: about 16 %
    assert ahead > 0.8 * 128  # 128 replacements are needed on average


def _needed(rng: random.Random, batch_size: int, share: float) -> int:
    """Number of prompts until `batch_size` groups are usable."""
    number = usable = 0
    while usable < batch_size:
        number += 1
        usable += rng.random() < share
    return number


def test_steps_long_ago_are_forgotten() -> None:
    prefetch = Prefetch()
    prefetch.end(64, 640)
    for _ in range(5):
        prefetch.end(64, 0)

    assert prefetch.begin(64, 1280) == 0
