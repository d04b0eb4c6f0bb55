"""Records of judged turns of one step -> the metrics `ppr/...`, which docs/metrics.md explains."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_pivot.rewards.process_record import PROCESS_FIELD, ProcessRecord, process_record


def process_metrics(rewards: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics of one step, as {name: value}; empty without `pivot.process`.

    Args:
        rewards: [num_rollouts] `reward_extra_info` of the rollouts.
    """
    of_process = [each for each in rewards if PROCESS_FIELD in each]
    if not of_process:
        return {}
    metrics = {"ppr/failed_judge_rate": _mean([each.get("reason") == JUDGE_FAILED for each in of_process])}
    judged = [(record, float(each["score"])) for each in of_process if (record := process_record(each)) is not None]
    return metrics | _turn_metrics(judged) if judged else metrics


def _turn_metrics(judged: Sequence[tuple[ProcessRecord, float]]) -> dict[str, float]:
    """Metrics of the rewards of turns, and of the judge's scores if a judge was asked."""
    records = [record for record, _ in judged]
    metrics = {
        "ppr/turns_per_trajectory": _mean([len(record.rewards) for record in records]),
        "ppr/reward_per_trajectory": _mean([sum(record.rewards) for record in records]),
    }
    if of_turns := [reward for record in records for reward in record.rewards[:-1]]:
        metrics["ppr/reward_per_judged_turn"] = _mean(of_turns)
    if any(record.scores for record in records):
        metrics |= _judge_metrics(records)
        metrics |= _outcome_metrics(judged)
    return metrics


JUDGE_FAILED = "judge_failed"
"""Reason of a rollout that is undecided because the judge was down."""


def _judge_metrics(records: Sequence[ProcessRecord]) -> dict[str, float]:
    """Metrics of the judge's answers and their cost."""
    scores = [score for record in records for score in record.scores]
    valid = [score for score in scores if score is not None]
    num_asked = sum(record.num_asked for record in records)
    metrics = {
        "ppr/invalid_rate": 1.0 - len(valid) / len(scores),
        "ppr/asked_per_turn": num_asked / len(scores),
        "ppr/cached_answers": float(sum(record.num_cached for record in records)),
        "ppr/judge_prompt_tokens": float(sum(record.num_prompt_tokens for record in records)),
        "ppr/judge_completion_tokens": float(sum(record.num_completion_tokens for record in records)),
    }
    seconds = "ppr/judge_seconds"
    metrics[f"{seconds}/mean"] = _mean([record.seconds for record in records])
    metrics[f"{seconds}/max"] = max(record.seconds for record in records)
    if valid:
        metrics["ppr/score"] = _mean(valid)
    return metrics


def _outcome_metrics(judged: Sequence[tuple[ProcessRecord, float]]) -> dict[str, float]:
    """Mean score of turns by the outcome of their trajectory, which a judge does not see."""
    metrics = {}
    for name, is_right in (("ppr/score_of_right", True), ("ppr/score_of_wrong", False)):
        scores = [
            score
            for record, outcome in judged
            if (outcome > 0.0) == is_right
            for score in record.scores
            if score is not None
        ]
        if scores:
            metrics[name] = _mean(scores)
    return metrics


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
