"""The study's arms: how each rewards turns, what it shows in the prompt, and its stock command."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from examples.dumps import step_dumps
from examples.evaluated_training import EvaluatedTraining
from examples.machine import machine_overrides
from examples.web.demonstrations import PER_TEMPLATE
from examples.web.episodes import MAX_TURNS
from examples.web.policy import (
    MAX_OBSERVATION_TOKENS,
    MAX_PROMPT_TOKENS,
    MAX_RESPONSE_TOKENS,
    MAX_TURN_TOKENS,
    WORKFLOW_TOKENS,
)

EVALUATION_STEPS = 10
"""Steps between two evaluations on the held-out rows."""
JUDGE = "rules"
"""Name under which the judge is served."""


class ArmKind(NamedTuple):
    """What one arm changes."""

    reward: str | None = None
    """`pivot.process.reward`: progress or gain; None: the outcome alone."""
    wrong_share: float = 0.0
    """Share of the judge's answers that say the opposite."""
    without_workflows: str | None = None
    """Name of the same arm without workflows; None for an arm that shows no workflows itself."""

    @property
    def has_workflows(self) -> bool:
        return self.without_workflows is not None


BASE, BASE_WORKFLOWS, OUTCOME = "base", "base_workflows", "outcome"
ARMS: Mapping[str, ArmKind] = {
    BASE: ArmKind(),
    OUTCOME: ArmKind(),
    "progress": ArmKind("progress"),
    "gain": ArmKind("gain"),
    "progress_20": ArmKind("progress", wrong_share=0.2),
    "gain_20": ArmKind("gain", wrong_share=0.2),
    BASE_WORKFLOWS: ArmKind(without_workflows=BASE),
    "outcome_workflows": ArmKind(without_workflows=OUTCOME),
    "gain_workflows": ArmKind("gain", without_workflows="gain"),
}
"""{name: arm}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(EvaluatedTraining):
    """One arm with one seed: GRPO, and evaluations of its policy on the held-out rows."""

    workflows: Path
    """Workflows of the demonstrations."""
    judge_url: str | None = None
    """Endpoint of the judge while it runs; None before, so that `settings` do not depend on it."""

    @property
    def kind(self) -> ArmKind:
        return ARMS[self.name]

    @property
    def is_trained(self) -> bool:
        return self.name not in (BASE, BASE_WORKFLOWS)

    @property
    def save_freq(self) -> int:
        return EVALUATION_STEPS

    @property
    def test_freq(self) -> int:
        return EVALUATION_STEPS

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=ppr"),
            *machine_overrides(),
            *self._judge,
            *self._workflows,
            f"pivot.rollout.tools={self.tools}",
            f"pivot.rollout.max_turns={MAX_TURNS}",
            f"pivot.rollout.max_turn_tokens={MAX_TURN_TOKENS}",
            f"pivot.rollout.max_observation_tokens={MAX_OBSERVATION_TOKENS}",
            *self.sizes,
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            "algorithm.adv_estimator=grpo",
            # GRPO would divide a KL penalty in the reward by its deviation in groups of equal outcomes.
            "algorithm.use_kl_in_reward=False",
            "actor_rollout_ref.actor.use_kl_loss=True",
            "actor_rollout_ref.actor.kl_loss_coef=0.001",
            "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={self.micro_batch_size}",
            "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0",
            *self.dumps_and_evaluation,
            "trainer.project_name=web",
        ]

    @property
    def _judge(self) -> list[str]:
        """Overrides for how turns are rewarded; they have the judge's URL only while it runs."""
        if self.kind.reward is None:
            return ["pivot.process.mode=outcome"]
        url = () if self.judge_url is None else (f"pivot.process.base_url={self.judge_url}",)
        return [
            "pivot.process.mode=sum",
            "pivot.process.form=checklist",
            f"pivot.process.reward={self.kind.reward}",
            *url,
            f"pivot.process.model={JUDGE}",
            "pivot.process.answer_format=text",
            "pivot.process.judge_validation=False",
        ]

    @property
    def _workflows(self) -> list[str]:
        if not self.kind.has_workflows:
            return []
        return [
            f"pivot.rollout.workflows.file={self.workflows}",
            f"pivot.rollout.workflows.per_template={PER_TEMPLATE}",
            f"pivot.rollout.workflows.max_tokens={WORKFLOW_TOKENS}",
        ]

    @property
    def evaluations(self) -> dict[int, Path]:
        """{step: dump of the trajectories on the held-out rows}, in order of the steps."""
        return step_dumps(self.validation)
