"""The base policy's evaluation and the training, each by its stock command."""

from dataclasses import dataclass

from examples.evaluated_training import EvaluatedTraining
from examples.machine import machine_overrides

BASE, TRAINED = "base", "grpo"
ARMS = (BASE, TRAINED)
MAX_PROMPT_TOKENS = 96
MAX_TURN_TOKENS = 24
MAX_RESPONSE_TOKENS = 512
"""Tokens of a whole trajectory, observations included."""
MAX_TURNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(EvaluatedTraining):
    """One arm with one seed: GRPO on hands, and the evaluation of its policy on the held-out hands."""

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
            f"pivot.rollout.max_turn_tokens={MAX_TURN_TOKENS}",
            *self.sizes,
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            *self.dumps_and_evaluation,
            f"trainer.test_freq={self.num_steps}",
            "trainer.project_name=blackjack",
        ]
