"""The study's arms: what a turn costs and who pays it, as files of `pivot.rewards`, and the stock command of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from examples.evaluated_training import EvaluatedTraining
from examples.machine import machine_overrides
from examples.quickstart.policy import MAX_NEW_TOKENS
from examples.tool_rollout.training import MAX_RESPONSE_TOKENS, MAX_TURNS
from verl_pivot.types import JsonObject

OUTCOME = "task"
"""Term that is the outcome of the task."""
BASE = "base"


class TurnCost(NamedTuple):
    """What an arm charges for the turns of a rollout."""

    weight: float = 0.0
    """lambda_eff of R = R_task - lambda_eff * T / T_max."""
    paid_on: str = "success"
    """Rollouts that are charged: "success" or "all"."""


ARMS: Mapping[str, TurnCost] = {
    BASE: TurnCost(),
    "free": TurnCost(),
    "success_0.1": TurnCost(0.1),
    "success_0.5": TurnCost(0.5),
    "all_0.1": TurnCost(0.1, "all"),
    "all_0.5": TurnCost(0.5, "all"),
}
"""{name: cost}; the first is not trained."""


def write_rewards(path: Path, cost: TurnCost) -> Path:
    """Write the file of `pivot.rewards`: the outcome, less the cost of the turns if there is any."""
    terms: JsonObject = {OUTCOME: {"value": "outcome", "bounds": [0, 1]}}
    if cost.weight:
        terms["turns"] = {"value": "turns", "scale": "max_turns", "weight": -cost.weight, "paid_on": cost.paid_on}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"terms": terms}, sort_keys=False))
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(EvaluatedTraining):
    """One arm with one seed: GRPO on whole tasks, and the evaluation of its policy on the held-out tasks."""

    rewards: Path

    @property
    def is_trained(self) -> bool:
        return self.name != BASE

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=tool_rollout"),
            *machine_overrides(),
            f"pivot.rollout.tools={self.tools}",
            f"pivot.rollout.max_turns={MAX_TURNS}",
            f"pivot.rollout.max_turn_tokens={MAX_NEW_TOKENS}",
            f"pivot.rewards={self.rewards}",
            *self.sizes,
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            *self.dumps_and_evaluation,
            f"trainer.test_freq={self.num_steps}",
            "trainer.project_name=turn_cost",
        ]
