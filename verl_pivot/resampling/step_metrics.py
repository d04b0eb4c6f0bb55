"""Scores and records of one step's trajectories -> the metrics `l0/...`, which docs/metrics.md explains."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from verl_pivot.data.rollout_records import RolloutRecord

SCORE_METRICS = ("em", "f1", "has_answer", "format", "execution", "steps", "trims")
"""Scores of a trajectory that are averaged, as `rewards.steps.trajectory_scores` names them."""


def step_metrics(trajectories: Sequence[tuple[Mapping[str, Any], RolloutRecord]]) -> dict[str, float]:
    """Means over the trajectories of one step, as {name: value}.

    Args:
        trajectories: [num_trajectories] `reward_extra_info` and record of each decided trajectory; those of agent loops
            without a notebook do not count.
    """
    of_notebook = [(scores, record) for scores, record in trajectories if scores.get("steps") is not None]
    if not of_notebook:
        return {}
    return {
        **{f"l0/{name}": fmean(scores[name] for scores, _ in of_notebook) for name in SCORE_METRICS},
        "l0/response_tokens": fmean(sum(record.turn_tokens) for _, record in of_notebook),
    }
