"""Columns of a row -> whether the row itself says how a rollout of it is scored."""

from collections.abc import Mapping
from typing import Any


def has_label(row: Mapping[str, Any]) -> bool:
    """Whether a row has the expert's action, for its verifier, or a ground truth, for a reward function."""
    scored_by = row.get("reward_model")
    has_truth = isinstance(scored_by, Mapping) and scored_by.get("ground_truth") is not None
    return has_truth or row.get("expert") is not None
