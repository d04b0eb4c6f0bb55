"""Columns of a row -> whether the row itself says how a rollout of it is scored, and its accepted answers."""

from collections.abc import Mapping
from typing import Any

import numpy

from verl_pivot.errors import DataError


def has_label(row: Mapping[str, Any]) -> bool:
    """Whether a row has the expert's action, for its verifier, or a ground truth that is not empty."""
    truth = ground_truth_of(row)
    is_empty = truth is None or (isinstance(truth, str | list | dict) and not truth)
    return not is_empty or row.get("expert") is not None


def ground_truth_of(row: Mapping[str, Any]) -> Any:
    """A row's `reward_model.ground_truth`; None if the row has none."""
    scored_by = row.get("reward_model")
    return scored_by.get("ground_truth") if isinstance(scored_by, Mapping) else None


def answers_of_truth(truth: Any) -> tuple[str, ...]:
    """Accepted answers of a ground truth; none if it is None or an empty text.

    Args:
        truth: A text, a number, a list of them, or an object with one of these under `target`, as Search-R1 has it.

    Raises:
        DataError: If it is anything else.
    """
    target = plain_truth(truth["target"] if isinstance(truth, Mapping) and "target" in truth else truth)
    listed = target if isinstance(target, list) else [] if target is None or target == "" else [target]
    for each in listed:
        if not isinstance(each, str | int | float) or isinstance(each, bool):
            raise DataError(
                "reward_model.ground_truth must be a text, a number, a list of them or an object with such a target, "
                f"got {truth!r:.200}: correct the row, or give the answer in the verifier's options"
            )
    return tuple(map(str, listed))


def plain_truth(value: Any) -> Any:
    """A ground truth whose lists, which parquet files give as tuples or arrays, are lists."""
    if isinstance(value, Mapping):
        return {name: plain_truth(each) for name, each in value.items()}
    if isinstance(value, numpy.ndarray | numpy.generic):
        value = value.tolist()
    return [plain_truth(each) for each in value] if isinstance(value, list | tuple) else value
