"""The study's arms: who pays the trajectories, and the stock command of each."""

from dataclasses import dataclass
from pathlib import Path

from examples.evaluated_training import EvaluatedTraining
from examples.machine import machine_overrides
from examples.quickstart.policy import MAX_NEW_TOKENS

MAX_RESPONSE_TOKENS = 384
"""Tokens of a whole trajectory, observations included."""
MAX_TURNS = 8
BASE, RULER, OUTCOME = "base", "ruler", "outcome"
ARMS = (BASE, RULER, OUTCOME)
"""Nothing is trained; a judge compares trajectories of rows without labels; the outcome of the task pays."""
JUDGE = "shop-judge"
"""Name under which the judge is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(EvaluatedTraining):
    """One arm with one seed: GRPO, and the evaluation of its policy on the held-out tasks."""

    judge_url: str = "http://127.0.0.1:0/v1"
    """Endpoint of the judge, once it is served; it decides nothing."""

    @property
    def is_trained(self) -> bool:
        return self.name != BASE

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo"),
            *self._paid_by,
            *machine_overrides(),
            f"pivot.rollout.tools={self.tools}",
            f"pivot.rollout.max_turns={MAX_TURNS}",
            f"pivot.rollout.max_turn_tokens={MAX_NEW_TOKENS}",
            f"reward.custom_reward_function.path={Path(__file__).with_name('outcome.py')}",
            "reward.custom_reward_function.name=outcome",
            *self.sizes,
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            *self.dumps_and_evaluation,
            f"trainer.test_freq={self.num_steps}",
            "trainer.project_name=mcp_rl",
        ]

    @property
    def _paid_by(self) -> tuple[str, ...]:
        if self.name != RULER:
            return ("+method=tool_rollout",)
        return ("+method=mcp_rl", f"pivot.ruler.base_url={self.judge_url}", f"pivot.ruler.model={JUDGE}")
