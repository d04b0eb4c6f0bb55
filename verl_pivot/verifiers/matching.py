"""Calls that ran in parallel have no order: each expected one needs a partner of its own."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Expected = TypeVar("Expected")
Actual = TypeVar("Actual")


def match_all(
    expected: Sequence[Expected], actual: Sequence[Actual], fits: Callable[[Expected, Actual], bool]
) -> list[int | None]:
    """[num_expected] index of each one's partner in a largest possible matching, None where it has none."""
    matrix = [[fits(wanted, given) for given in actual] for wanted in expected]
    if len(expected) == 1:
        return [matrix[0].index(True) if any(matrix[0]) else None]
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # takes a tenth of a second: most actions are one call

    rows, columns = linear_sum_assignment(matrix, maximize=True)
    partners: list[int | None] = [None] * len(expected)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if matrix[row][column]:
            partners[row] = column
    return partners
