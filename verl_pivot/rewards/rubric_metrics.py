"""Criteria of one step's rollouts -> the metrics `rubrics/...`, which docs/metrics.md explains."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import msgspec

from verl_pivot.data.rollout_records import CRITERIA_FIELD
from verl_pivot.rewards.rubric_group import ScoredReport


def rubric_metrics(rewards: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics of one step, as {name: value}; empty without `pivot.rubrics`.

    Args:
        rewards: [num_rollouts] `reward_extra_info` of the rollouts.
    """
    of_rubrics = [each[CRITERIA_FIELD] for each in rewards if CRITERIA_FIELD in each]
    if not of_rubrics:
        return {}
    metrics = {"rubrics/unscored_rate": fmean(not text for text in of_rubrics)}
    scored = [msgspec.json.decode(text, type=ScoredReport) for text in of_rubrics if text]
    if not scored:
        return metrics
    spreads = [each.spread for report in scored for each in report.criteria if each.spread is not None]
    return {
        **metrics,
        "rubrics/score": fmean(report.score for report in scored),
        "rubrics/criteria": fmean(len(report.criteria) for report in scored),
        "rubrics/evolved": fmean(sum(each.born is not None for each in report.criteria) for report in scored),
        "rubrics/unwritten_rate": fmean(report.is_unwritten for report in scored),
        **({"rubrics/spread": fmean(spreads)} if spreads else {}),
    }
