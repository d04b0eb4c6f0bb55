"""The size of the mini-batches of an update that has fewer groups than a full step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.resampling.mini_batches import fitted_mini_batch


@pytest.mark.parametrize(
    ("num_groups", "num_updates", "groups_per_unit", "size"),
    [
        (512, 1, 1, 512),
        (154, 1, 1, 154),  # 70 % of 512 groups rejected: still one update
        (154, 4, 1, 39),  # 39 + 39 + 39 + 37
        (154, 1, 4, 156),  # 64 GPUs, 16 rollouts per group: whole rows for each GPU
        (1, 4, 1, 1),
        (3, 4, 2, 2),
    ],
)
def test_the_size_gives_at_most_the_updates_of_a_full_step(
    num_groups: int, num_updates: int, groups_per_unit: int, size: int
) -> None:
    assert fitted_mini_batch(num_groups, num_updates=num_updates, groups_per_unit=groups_per_unit) == size


@given(st.integers(1, 2000), st.integers(1, 16), st.integers(1, 64))
def test_less_than_one_unit_per_update_is_padding(num_groups: int, num_updates: int, groups_per_unit: int) -> None:
    size = fitted_mini_batch(num_groups, num_updates=num_updates, groups_per_unit=groups_per_unit)

    assert size % groups_per_unit == 0
    assert num_groups <= size * num_updates < num_groups + num_updates * groups_per_unit
