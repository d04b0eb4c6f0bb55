"""Rows of two queries -> whether they are the same: values, types, NULLs, duplicates and, if asked for, order.

Whole numbers are compared exactly. Others may differ by 1e-9 (relative), since sums in another order do, but by at most
0.001, or by the rounding error of a float where that is larger. So no timestamp or order number is taken for the next.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from verl_pivot.types import Json

Rows: TypeAlias = Sequence[Sequence[Json]]
"""[num_rows][num_columns]"""
Cell: TypeAlias = tuple[object, ...]
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-9, 1e-12
_MAX_DIFFERENCE, _ROUNDING = 1e-3, 1e-13
_MAX_EXACT_FLOAT = 2.0**53
"""All floats from this size on are whole, although they may be sums of numbers that are not."""


class SortedRows(NamedTuple):
    """Rows that a query may give, in its order: at least up to the end of the tie that its LIMIT cuts through."""

    rows: Rows
    keys: Rows
    """[num_rows] values by which the rows are sorted; rows with equal keys may stand in any order."""
    num_skipped: int
    """Number of rows that the query leaves out at the beginning."""


def same_rows(first: Rows, second: Rows, *, is_ordered: bool) -> bool:
    """Whether both have the same rows, each equally often. The order of columns counts, their names do not."""
    if len(first) != len(second):
        return False
    one, other = canonical(first, second)
    return one == other if is_ordered else Counter(one) == Counter(other)


def fits(rows: Rows, found: SortedRows, num_rows: int) -> bool:
    """Whether rows are a possible result of the query: `num_rows` rows in its order, tied rows in any order.

    If its LIMIT cuts through tied rows, any of them are right.
    """
    if len(rows) != num_rows:
        return False
    given, every = canonical(rows, found.rows)
    begin = 0
    for end in _ends_of_ties(found.keys):
        first, last = max(begin, found.num_skipped), min(end, found.num_skipped + num_rows)
        part = given[max(0, first - found.num_skipped) : max(0, last - found.num_skipped)]
        if Counter(part) - Counter(every[begin:end]):
            return False
        begin = end
    return begin >= found.num_skipped + num_rows


def _ends_of_ties(keys: Rows) -> Iterator[int]:
    for index in range(1, len(keys)):
        if keys[index] != keys[index - 1]:
            yield index
    yield len(keys)


def canonical(*tables: Rows) -> list[list[Cell]]:
    """The tables' rows in a form in which equal rows are equal in Python and can be hashed."""
    num_columns = max((len(row) for table in tables for row in table), default=0)
    names = [_names_of_numbers(tables, column) for column in range(num_columns)]
    return [
        [tuple(_canonical(cell, names[column]) for column, cell in enumerate(row)) for row in table] for table in tables
    ]


def _names_of_numbers(tables: Sequence[Rows], column: int) -> Mapping[float, float]:
    """{number: representative of all numbers about equal to it}; empty for a column of whole numbers alone."""
    cells = (row[column] for table in tables for row in table if column < len(row))
    numbers = {number for cell in cells for number in _numbers(cell)}
    if all(map(_is_whole, numbers)):
        return {}
    names: dict[float, float] = {}
    last: int | float | None = None
    for number in sorted(numbers):
        is_new = last is None or (_is_whole(last) and _is_whole(number)) or not _is_close(last, number)
        names[number] = number if is_new else names[last]  # type: ignore[index]  # a number that is not new has one
        last = number
    return names


def _numbers(cell: Json) -> Iterator[int | float]:
    if isinstance(cell, list):
        for each in cell:
            yield from _numbers(each)
    elif (isinstance(cell, int) and not isinstance(cell, bool)) or (isinstance(cell, float) and math.isfinite(cell)):
        yield cell


def _is_whole(number: int | float) -> bool:
    return isinstance(number, int) or (number.is_integer() and abs(number) < _MAX_EXACT_FLOAT)


def _is_close(first: int | float, second: int | float) -> bool:
    size = max(abs(first), abs(second))
    if size >= _MAX_EXACT_FLOAT and (isinstance(first, int) or isinstance(second, int)):
        return first == second
    rounding = max(_ABSOLUTE_TOLERANCE, _ROUNDING * size)
    return second - first <= max(rounding, min(_RELATIVE_TOLERANCE * size, _MAX_DIFFERENCE))


def _canonical(cell: Json, names: Mapping[float, float]) -> Cell:
    if isinstance(cell, list):
        return ("list", *(_canonical(each, names) for each in cell))
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return (type(cell).__name__, cell)
    if isinstance(cell, float) and math.isnan(cell):
        return ("nan",)
    return ("number", names.get(cell, cell))
