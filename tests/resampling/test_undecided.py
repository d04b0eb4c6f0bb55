"""Undecided rows never reach the update, nor does the last row of a group that lost its others."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.resampling.undecided import DecidedRows, keep_decided


def test_undecided_rows_and_rows_that_remain_alone_in_their_group_are_dropped() -> None:
    groups = ["a", "a", "a", "b", "b", "c", "c"]
    decided = [True, False, True, False, True, True, True]

    kept = keep_decided(groups, list("0123456"), decided, min_group_size=2)

    assert kept == DecidedRows(rows=(0, 2, 5, 6), num_undecided=2, num_lone=1)


def test_validation_keeps_a_lone_row() -> None:
    assert keep_decided(["a", "b"], ["0", "1"], [True, False], min_group_size=1) == DecidedRows(
        rows=(0,), num_undecided=1, num_lone=0
    )


def test_groups_of_one_by_configuration_stay() -> None:
    assert keep_decided(["a", "b"], ["0", "1"], [True, True], min_group_size=2).rows == (0, 1)


def test_the_only_row_of_a_group_whose_other_rollouts_gave_no_row_is_dropped() -> None:
    kept = keep_decided(["a", "b", "b"], ["0", "1", "2"], [True, True, True], min_group_size=2, short_groups={"a", "b"})

    assert kept == DecidedRows(rows=(1, 2), num_undecided=0, num_lone=1)


def test_the_rows_of_a_rollout_that_remains_alone_are_dropped_however_many_they_are() -> None:
    kept = keep_decided(["a"] * 4, ["0", "0", "0", "1"], [True, True, True, False], min_group_size=2)

    assert kept == DecidedRows(rows=(), num_undecided=1, num_lone=3)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())), st.integers(1, 3))
def test_every_row_is_kept_or_counted(rows: list[tuple[str, bool]], min_group_size: int) -> None:
    groups, decided = [group for group, _ in rows], [is_decided for _, is_decided in rows]

    kept = keep_decided(groups, [str(place) for place in range(len(rows))], decided, min_group_size=min_group_size)

    assert len(kept.rows) + kept.num_undecided + kept.num_lone == len(rows)
    assert all(decided[row] for row in kept.rows)
    sizes = Counter(groups)
    assert all(
        count >= min(min_group_size, sizes[group]) for group, count in Counter(groups[row] for row in kept.rows).items()
    )
