"""Rows that have a label of their own, and rows that have none."""

from typing import Any

import numpy as np
import pytest

from verl_pivot.data.labels import has_label


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
