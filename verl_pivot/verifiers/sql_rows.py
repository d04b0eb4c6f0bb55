"""Rows of two queries -> whether they are the same: values, types, NULLs, duplicates and, if asked for, order."""

import json
import math
from collections.abc import Sequence
from typing import TypeAlias

from verl_pivot.types import Json

Rows: TypeAlias = Sequence[Sequence[Json]]
"""[num_rows][num_columns]"""
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-9, 1e-12
_SORTED_DIGITS = 6
"""Digits of a number that count when rows are sorted; sums in another order differ in the last ones."""


def same_rows(first: Rows, second: Rows, *, is_ordered: bool) -> bool:
    """Whether both have the same rows, each equally often. The order of columns counts, their names do not."""
    if len(first) != len(second):
        return False
    if not is_ordered:
        first, second = sorted(first, key=_row_key), sorted(second, key=_row_key)
    return all(_same_row(one, other) for one, other in zip(first, second, strict=True))


def _same_row(first: Sequence[Json], second: Sequence[Json]) -> bool:
    return len(first) == len(second) and all(_same_cell(one, other) for one, other in zip(first, second, strict=True))


def _same_cell(first: Json, second: Json) -> bool:
    if _is_number(first) and _is_number(second):
        return _same_number(float(first), float(second))  # type: ignore[arg-type]
    if isinstance(first, list) and isinstance(second, list):
        return _same_row(first, second)
    return type(first) is type(second) and first == second


def _same_number(first: float, second: float) -> bool:
    is_nan = math.isnan(first) and math.isnan(second)
    return is_nan or math.isclose(first, second, rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _row_key(row: Sequence[Json]) -> list[tuple[int, float, str]]:
    return [_cell_key(cell) for cell in row]


def _cell_key(cell: Json) -> tuple[int, float, str]:
    if cell is None:
        return (0, 0.0, "")
    if isinstance(cell, int | float):
        number = float(cell)
        if math.isnan(number):
            return (1, -math.inf, "nan")
        return (1, float(f"{number:.{_SORTED_DIGITS}g}"), type(cell).__name__)
    return (2, 0.0, cell if isinstance(cell, str) else json.dumps(cell))
