"""Checks of a call's arguments against the schema of its tool."""

import time
from typing import Any

import pytest

from verl_pivot.data.json_values import all_differ, equal
from verl_pivot.data.tool_schemas import ToolSchema

TAGS = ToolSchema({"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}})
VALUES: list[Any] = [
    1,
    1.0,
    True,
    "1",
    None,
    0,
    -0.0,
    False,
    [],
    [1],
    [1.0],
    [True],
    {},
    {"a": 1},
    {"a": 1.0},
    {"b": 1},
]


@pytest.mark.parametrize("one", VALUES)
def test_two_items_differ_unless_they_are_equal_as_json(one: object) -> None:
    assert [all_differ([one, other]) for other in VALUES] == [not equal(one, other) for other in VALUES]


@pytest.mark.parametrize("other", VALUES)
def test_a_schema_takes_items_that_differ(other: object) -> None:
    problem = TAGS.problem({"tags": ["x", 1, other]})

    assert (problem is None) == (not equal(1, other))
    assert problem is None or problem.detail.startswith("$.tags: ['x', 1, 1")


def test_many_items_without_an_order_are_compared_in_no_time() -> None:
    items = [item for number in range(20_000) for item in (number, f"{number}")]
    began = time.perf_counter()

    assert TAGS.problem({"tags": items}) is None
    assert TAGS.problem({"tags": [*items, 7.0]}) is not None
    assert time.perf_counter() - began < 5.0
