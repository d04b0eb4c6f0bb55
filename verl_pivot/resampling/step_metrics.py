"""Scores and records of one step's trajectories -> the metrics `l0/...`, which docs/metrics.md explains."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from verl_pivot.data.rollout_records import RolloutRecord


def step_metrics(trajectories: Sequence[tuple[Mapping[str, Any], RolloutRecord]]) -> dict[str, float]:
    """Means over the trajectories of one step, as {name: value}.

    Args:
        trajectories: [num_trajectories] (`reward_extra_info`, record) of each decided trajectory, with the names of
            `rewards.steps.trajectory_scores`. Trajectories of agent loops without a notebook do not count.
    """
    of_notebook = [(scores, record) for scores, record in trajectories if scores.get("steps") is not None]
    if not of_notebook:
        return {}

    def mean_of(name: str) -> float:
        return fmean(scores[name] for scores, _ in of_notebook)

    return {
        "l0/em": mean_of("em"),
        "l0/f1": mean_of("f1"),
        "l0/has_answer": mean_of("has_answer"),
        "l0/format": mean_of("format"),
        "l0/execution": mean_of("execution"),
        "l0/steps": mean_of("steps"),
        "l0/trims": mean_of("trims"),
        "l0/response_tokens": fmean(sum(record.turn_tokens) for _, record in of_notebook),
    }
