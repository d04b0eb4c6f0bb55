"""The study's arms: how the rollouts of a step come about, and the stock command of each."""

from collections.abc import Mapping
from dataclasses import dataclass

from examples.evaluated_training import EvaluatedTraining
from examples.machine import machine_overrides
from examples.quickstart.policy import MAX_NEW_TOKENS
from examples.tool_rollout.training import MAX_RESPONSE_TOKENS, MAX_TURNS

BASE, PLAIN, SEARCH = "base", "plain", "tree_search"
ARMS: Mapping[str, tuple[str, ...]] = {
    BASE: ("+method=tool_rollout",),
    PLAIN: ("+method=tool_rollout",),
    SEARCH: ("+method=tree_search",),
    "tree_search_outcome": ("+method=tree_search", "pivot.tree_search.scored_by=outcome"),
}
"""{name: overrides that the other arms lack}; the first is not trained."""
EVALUATED_EVERY = 10
"""Steps between two evaluations on the held-out tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(EvaluatedTraining):
    """One arm with one seed: GRPO on whole tasks, and evaluations of its policy on the held-out tasks."""

    @property
    def is_trained(self) -> bool:
        return self.name != BASE

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo"),
            *ARMS[self.name],
            *machine_overrides(),
            f"pivot.rollout.tools={self.tools}",
            f"pivot.rollout.max_turns={MAX_TURNS}",
            f"pivot.rollout.max_turn_tokens={MAX_NEW_TOKENS}",
            *self.sizes,
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            *self.dumps_and_evaluation,
            f"trainer.test_freq={EVALUATED_EVERY}",
            "trainer.project_name=tree_search",
        ]
