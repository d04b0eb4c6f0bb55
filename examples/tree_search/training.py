"""The study's arms: how the rollouts of a step are made."""

from collections.abc import Mapping
from pathlib import Path

from examples.arms import ToolArm, shop_arm

BASE, PLAIN, SEARCH = "base", "plain", "tree_search"
ARMS: Mapping[str, tuple[str, ...]] = {
    BASE: ("+method=tool_rollout",),
    PLAIN: ("+method=tool_rollout",),
    SEARCH: ("+method=tree_search",),
    "tree_search_outcome": ("+method=tree_search", "pivot.tree_search.scored_by=outcome"),
}
"""{name: overrides of the arm}; the first is not trained."""
EVALUATED_EVERY = 10
"""Steps between two evaluations on the held-out tasks."""


def make_arm(name: str, policy: Path, folder: Path, seed: int, *, num_steps: int, num_held_out: int) -> ToolArm:
    """One arm of a seed."""
    return shop_arm(
        name,
        policy,
        folder,
        seed,
        project="tree_search",
        overrides=ARMS[name],
        is_base=name == BASE,
        num_steps=num_steps,
        num_held_out=num_held_out,
        evaluated_every=EVALUATED_EVERY,
    )
