"""The study's arms: what each changes in Search-R1 with GRPO, and its stock command."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from examples.evaluated_training import EvaluatedTraining
from examples.machine import machine_overrides
from examples.search.transcripts import MAX_TURNS
from verl_pivot.tools.search_files import SearchKind

MAX_PROMPT_TOKENS = 64
MAX_TURN_TOKENS = 64
MAX_OBSERVATION_TOKENS = 128
MAX_RESPONSE_TOKENS = 448
"""Tokens of a whole trajectory, observations included."""
BASE = "base"
"""Arm that is not trained."""


class ArmKind(NamedTuple):
    """What one arm changes."""

    cost_per_search: float = 0.0
    kind: SearchKind = SearchKind.BM25
    max_turns: int = MAX_TURNS
    """Most turns of a trajectory; with 1 the policy cannot search."""
    divides_by_deviation: bool = True
    """Whether an advantage is divided by the standard deviation of its group's rewards, as GRPO does."""


ARMS: Mapping[str, ArmKind] = {
    BASE: ArmKind(),
    "search": ArmKind(),
    "cost": ArmKind(cost_per_search=0.1),
    "cost_undivided": ArmKind(cost_per_search=0.1, divides_by_deviation=False),
    "hybrid": ArmKind(kind=SearchKind.HYBRID),
    "no_search": ArmKind(max_turns=1),
}
"""{name: arm}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(EvaluatedTraining):
    """One arm with one seed: GRPO, and the evaluation of its policy on the held-out questions."""

    @property
    def is_trained(self) -> bool:
        return self.name != BASE

    @property
    def command(self) -> list[str]:
        kind = ARMS[self.name]
        reward = "reward.custom_reward_function"
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=search_r1_grpo"),
            *machine_overrides(),
            f"pivot.rollout.tools={self.tools}",
            f"pivot.rollout.max_turns={kind.max_turns}",
            f"pivot.rollout.max_turn_tokens={MAX_TURN_TOKENS}",
            *([f"pivot.rollout.max_observation_tokens={MAX_OBSERVATION_TOKENS}"] if kind.max_turns > 1 else []),
            f"{reward}.path=pkg://verl_pivot.rewards.search_rewards",
            f"{reward}.name=search_r1",
            f"+{reward}.reward_kwargs.cost_per_search={kind.cost_per_search}",
            f"algorithm.norm_adv_by_std_in_grpo={kind.divides_by_deviation}",
            *self.sizes,
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={self.micro_batch_size}",
            "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0",
            *self.dumps_and_evaluation,
            "trainer.project_name=search",
        ]
