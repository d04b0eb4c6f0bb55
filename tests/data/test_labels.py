"""Rows that have a label of their own, and rows that have none."""

from typing import Any

import numpy as np
import pytest

from verl_pivot.data.labels import answers_of_truth, has_label
from verl_pivot.errors import DataError


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, False),
        ({"reward_model": None}, False),
        ({"reward_model": {"style": "ruler"}}, False),
        ({"reward_model": {"style": "ruler", "ground_truth": None}}, False),
        ({"reward_model": {"style": "rule", "ground_truth": ""}}, False),
        ({"reward_model": {"style": "rule", "ground_truth": []}}, False),
        ({"reward_model": {"style": "rule", "ground_truth": "0"}}, True),
        ({"reward_model": {"style": "rule", "ground_truth": 0}}, True),
        ({"reward_model": {"style": "rule", "ground_truth": {"target": ["Paris"]}}}, True),
        ({"reward_model": {"style": "rule", "ground_truth": np.array(["Paris", "Lyon"])}}, True),
        ({"expert": "{}"}, True),
        ({"expert": None}, False),
    ],
)
def test_a_row_with_an_expert_or_a_ground_truth_that_is_not_empty_has_a_label(
    row: dict[str, Any], expected: bool
) -> None:
    assert has_label(row) is expected


@pytest.mark.parametrize(
    ("truth", "answers"),
    [
        (None, ()),
        ("", ()),
        ([], ()),
        ("Paris", ("Paris",)),
        (42, ("42",)),
        (np.float64(0.5), ("0.5",)),
        (["Paris", "City of Paris"], ("Paris", "City of Paris")),
        (np.array(["Paris"], dtype=object), ("Paris",)),
        ({"target": np.array(["Paris", "Lyon"], dtype=object)}, ("Paris", "Lyon")),
        ({"target": "Paris"}, ("Paris",)),
        ({"target": None}, ()),
    ],
)
def test_accepted_answers_are_a_text_a_number_a_list_or_a_target(truth: Any, answers: tuple[str, ...]) -> None:
    assert answers_of_truth(truth) == answers


@pytest.mark.parametrize("truth", [{"answer": "Paris"}, [["Paris"]], [None], True, {"target": {"a": "b"}}])
def test_a_truth_of_another_form_is_refused(truth: Any) -> None:
    with pytest.raises(DataError, match="ground_truth must be a text, a number, a list of them or an object with such"):
        answers_of_truth(truth)
