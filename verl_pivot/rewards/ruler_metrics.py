"""Rewards of one step's rollouts by comparison -> the metrics `ruler/...`, which docs/metrics.md explains."""

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

RULER = "ruler"
"""Name that stands for the verifier in the rewards of rollouts that were compared."""
INDEPENDENT_REWARD = "independent_reward"
"""Key of `reward_extra_info`: the row's own reward of a rollout that is paid by comparison; NaN if it is undecided."""


def ruler_metrics(rewards: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Metrics of one step, as {name: value}; empty if no rollout was compared.

    Args:
        rewards: [num_rollouts] `reward_extra_info` of the rollouts.
    """
    compared = [each for each in rewards if each.get("verifier") == RULER]
    if not compared:
        return {}
    scores = [float(each["score"]) for each in compared if not each["undecided"]]
    own = [float(each[INDEPENDENT_REWARD]) for each in compared if INDEPENDENT_REWARD in each]
    decided_own = [reward for reward in own if not math.isnan(reward)]
    return {
        "ruler/undecided_rate": 1.0 - len(scores) / len(compared),
        **({"ruler/score": fmean(scores)} if scores else {}),
        **({"ruler/independent_reward": fmean(decided_own)} if decided_own else {}),
    }
