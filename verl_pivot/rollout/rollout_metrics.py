"""Records of one step's rollouts -> the metrics `rollout/...` and `routing/...`, which docs/metrics.md explains."""

from collections import Counter
from collections.abc import Sequence

from verl_pivot.data.rollout_records import CallStatus, RolloutRecord, StopReason
from verl_pivot.types import ErrorKind

_STOP_REASONS = tuple(reason for reason in StopReason if reason is not StopReason.SINGLE_TURN)
"""Reasons for which a rollout with tools can end."""


def rollout_metrics(records: Sequence[RolloutRecord], *, num_failed: int = 0) -> dict[str, float]:
    """Metrics of one step, as {name: value}.

    Args:
        records: [num_rollouts] records of the step's rollouts, masked ones included.
        num_failed: Rollouts without a record, because the agent loop raised an error.
    """
    if not records:
        return {"rollout/masked_rate": 1.0} if num_failed else {}
    num_rollouts = len(records)
    stops = Counter(record.stop_reason for record in records)
    metrics = {
        "rollout/calls_per_trajectory": sum(record.num_calls for record in records) / num_rollouts,
        "rollout/masked_rate": (sum(record.is_masked for record in records) + num_failed) / (num_rollouts + num_failed),
        "rollout/text_differs_rate": sum(record.text_differs for record in records) / num_rollouts,
        "rollout/empty_answers": float(sum(record.num_empty_answers for record in records)),
        **{f"rollout/stop_reason/{reason}": stops[reason] / num_rollouts for reason in StopReason},
        **_spread("rollout/generate_seconds", [record.generate_seconds for record in records]),
        **_spread("rollout/tool_seconds", [record.tool_seconds for record in records]),
    }
    if turns := [tokens for record in records for tokens in record.turn_tokens]:
        metrics |= _spread("rollout/turn_tokens", turns)
        num_idle = sum(len(record.calls) - record.num_calls for record in records)
        metrics["rollout/no_action_rate"] = num_idle / len(turns)
    return {**metrics, **_routing_metrics(records), **_call_metrics(records), **_search_metrics(records)}


def workflow_metrics(rollouts: Sequence[tuple[RolloutRecord, float | None]]) -> dict[str, float]:
    """Mean scores of rollouts with and without workflows, and metrics of the workflows shown.

    Args:
        rollouts: [num_rollouts] (record, score) of each; a score of None is undecided.
    """
    versions = [record.workflow_version for record, _ in rollouts if record.workflow_version is not None]
    metrics: dict[str, float] = {}
    if versions:
        shown = [record.num_workflows for record, _ in rollouts if record.workflow_version is not None]
        metrics["workflows/version"] = float(max(versions))
        metrics["workflows/shown_per_rollout"] = sum(shown) / len(shown)
    for name, has_workflows in (("with", True), ("without", False)):
        scores = [
            score for record, score in rollouts if score is not None and (record.num_workflows > 0) == has_workflows
        ]
        if scores:
            metrics[f"workflows/score_{name}"] = sum(scores) / len(scores)
    return metrics


def _search_metrics(records: Sequence[RolloutRecord]) -> dict[str, float]:
    searched = [record.search for record in records if record.search is not None]
    if not searched:
        return {}
    gains = [search.gain for search in searched if search.gain is not None]
    return {
        **({"tree_search/gain": sum(gains) / len(gains)} if gains else {}),
        "tree_search/extra_tokens": sum(search.extra_tokens for search in searched) / len(searched),
    }


def _routing_metrics(records: Sequence[RolloutRecord]) -> dict[str, float]:
    costs = [record.journey for record in records if record.journey is not None]
    if not costs:
        return {}
    return {
        **_spread("routing/wait_seconds", [cost.wait_seconds for cost in costs]),
        "routing/moves": float(sum(cost.num_moves for cost in costs)),
        "routing/recomputed_tokens": float(sum(cost.recomputed_tokens for cost in costs)),
    }


def _call_metrics(records: Sequence[RolloutRecord]) -> dict[str, float]:
    calls = [call for record in records for call in record.made_calls]
    if not calls:
        return {}
    kinds = Counter(call.error_kind for call in calls if call.status is CallStatus.TOOL_ERROR)
    by_kind = sorted((str(kind), count) for kind, count in kinds.items())
    return {
        "rollout/error_rate": kinds.total() / len(calls),
        "rollout/truncated_rate": sum(call.truncated for call in calls) / len(calls),
        **{f"rollout/error_rate/{kind}": count / len(calls) for kind, count in by_kind},
        "rollout/unknown_tool_rate": kinds[ErrorKind.UNKNOWN_TOOL] / len(calls),
    }


def success_metrics(successes: Sequence[RolloutRecord]) -> dict[str, float]:
    """Share of failed calls in rewarded rollouts, which figure 4 of rStar2-Agent (arXiv:2508.20722) plots."""
    num_calls = sum(record.num_calls for record in successes)
    num_errors = sum(record.num_tool_errors for record in successes)
    return {"rollout/error_rate_of_successes": num_errors / num_calls} if num_calls else {}


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}/mean": sum(values) / len(values),
        f"{name}/max": float(max(values)),
        f"{name}/min": float(min(values)),
    }
