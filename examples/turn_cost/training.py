"""The study's arms: the cost of a turn, and the rollouts that are charged, as files of `pivot.rewards`."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from examples.arms import ToolArm, shop_arm
from verl_pivot.types import JsonObject

OUTCOME = "task"
"""Name of the reward term for the outcome of the task."""
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


def make_arm(name: str, policy: Path, folder: Path, seed: int, *, num_steps: int, num_held_out: int) -> ToolArm:
    """One arm of a seed."""
    rewards = write_rewards(folder / f"{name}.yaml", ARMS[name])
    return shop_arm(
        name,
        policy,
        folder,
        seed,
        project="turn_cost",
        overrides=("+method=tool_rollout", f"pivot.rewards={rewards}"),
        is_base=name == BASE,
        num_steps=num_steps,
        num_held_out=num_held_out,
    )
