"""verifiers.sql_rows: equal rows, with exact whole numbers, and rows that an order leaves tied."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.types import Json
from verl_pivot.verifiers.sql_rows import SortedRows, fits, same_rows

PHONE = 4915112345678


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([[1]], [[1.0]]),
        ([[0.1 + 0.2]], [[0.3]]),
        ([[30.000000000000004]], [[30]]),
        ([[0.1 + 0.2 - 0.3]], [[0]]),
        ([[None], [None]], [[None], [None]]),
        ([[math.nan]], [[math.nan]]),
        ([[PHONE], [PHONE + 1]], [[PHONE + 1], [PHONE]]),
        ([[n] for n in range(1_000_001, 1_000_008)], [[n] for n in range(1_000_007, 1_000_000, -1)]),
        ([[1e17 + 16]], [[1e17]]),
        ([[123456789.1234567]], [[123456789.1234568]]),
        ([[1.0000000001]], [[1]]),
        ([[1e14 + 0.1]], [[10**14]]),
        ([[["list", [0.1 + 0.2]]]], [[["list", [0.3]]]]),
        ([[0.3, "b"], [0.1 + 0.2, "a"]], [[0.3, "a"], [0.3, "b"]]),
    ],
)
def test_rows_that_differ_by_rounding_or_order_are_the_same(first: list[list[Json]], second: list[list[Json]]) -> None:
    assert same_rows(first, second, is_ordered=False)
    assert same_rows(second, first, is_ordered=False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([[PHONE]], [[PHONE + 1]]),
        ([[float(PHONE)]], [[PHONE + 1]]),
        ([[float(PHONE)]], [[float(PHONE + 1)]]),
        ([[PHONE, 0.5]], [[PHONE + 1, 0.5]]),
        ([[0.5], [PHONE]], [[0.5], [PHONE + 1]]),
        ([[2**70]], [[2**70 + 1]]),
        ([[2**53 + 1]], [[2.0**53]]),
        ([[2**2000]], [[1e300]]),
        ([[PHONE]], [[PHONE + 0.5]]),
        ([[PHONE]], [[PHONE + 1000.5]]),
        ([[1_700_000_000.25]], [[1_700_000_001.25]]),
        ([[2_460_000.5]], [[2_460_000.502]]),
        ([[1]], [["1"]]),
        ([[1]], [[True]]),
        ([[0]], [[None]]),
        ([[""]], [[None]]),
        ([[1], [1]], [[1]]),
        ([[1], [1], [2]], [[1], [2], [2]]),
        ([[1, 2]], [[2, 1]]),
        ([[1]], [[1, 1]]),
        ([[0.1]], [[0.1001]]),
        ([["a"]], [["A"]]),
        ([[math.nan]], [[None]]),
        ([[math.inf]], [[-math.inf]]),
        ([[["bytes", "AA=="]]], [["AA=="]]),
        ([[["decimal", "12345678901234567.01"]]], [[["decimal", "12345678901234567.02"]]]),
    ],
)
def test_rows_that_differ_are_not_the_same(first: list[list[Json]], second: list[list[Json]]) -> None:
    assert not same_rows(first, second, is_ordered=False)
    assert not same_rows(second, first, is_ordered=False)


cells = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, 0.1 + 0.2, 0.3, "a", "1", PHONE])
tables = st.lists(st.tuples(cells, cells).map(list), max_size=6)


@given(tables, st.randoms())
def test_rows_are_the_same_in_any_order_and_never_with_another_row(rows: list[list[Json]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert same_rows(rows, shuffled, is_ordered=False)
    assert same_rows(rows, rows, is_ordered=True)
    assert not same_rows(rows, [*rows, [None, None]], is_ordered=False)


whole = st.integers(-(10**18), 10**18)


@given(st.lists(whole), st.lists(whole))
def test_whole_numbers_are_compared_as_python_compares_them(first: list[int], second: list[int]) -> None:
    is_same = same_rows(
        [[each] for each in first], [[float(each) if abs(each) < 2**53 else each] for each in second], is_ordered=False
    )

    assert is_same == (Counter(map(Fraction, first)) == Counter(map(Fraction, second)))


FOUND = SortedRows(rows=[["a"], ["b"], ["c"], ["d"], ["e"]], keys=[[1], [1], [2], [2], [3]], num_skipped=0)


@pytest.mark.parametrize(
    ("rows", "num_skipped", "is_right"),
    [
        ("abcde", 0, True),
        ("badce", 0, True),
        ("abdce", 0, True),
        ("acbde", 0, False),
        ("abced", 0, False),
        ("aacde", 0, False),
        ("abcd", 0, True),
        ("a", 0, True),
        ("b", 0, True),
        ("c", 0, False),
        ("abd", 0, True),
        ("abe", 0, False),
        ("b", 1, True),
        ("bd", 1, True),
        ("ac", 1, True),
        ("cb", 1, False),
        ("e", 4, True),
        ("d", 4, False),
        ("", 5, True),
        ("e", 5, False),
    ],
)
def test_ties_may_stand_in_any_order_and_a_limit_may_cut_them_anywhere(
    rows: str, num_skipped: int, is_right: bool
) -> None:
    assert fits([[each] for each in rows], FOUND._replace(num_skipped=num_skipped), len(rows)) is is_right
