"""Columns of a row -> whether the row itself says how a rollout of it is scored."""

from collections.abc import Mapping
from typing import Any


def has_label(row: Mapping[str, Any]) -> bool:
    """Whether a row has the expert's action, for its verifier, or a ground truth that is not empty."""
    scored_by = row.get("reward_model")
    truth = scored_by.get("ground_truth") if isinstance(scored_by, Mapping) else None
    is_empty = truth is None or (isinstance(truth, str | list | dict) and not truth)
    return not is_empty or row.get("expert") is not None
