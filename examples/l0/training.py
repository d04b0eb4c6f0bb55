"""The study's arms: what each changes in L0, and its stock command, which trains and then asks held-out questions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from examples.evaluated_training import EvaluatedTraining
from examples.l0.transcripts import MAX_CONTEXT_TOKENS, MAX_STEP_TOKENS, MAX_STEPS
from examples.machine import machine_overrides

MAX_PROMPT_TOKENS = MAX_CONTEXT_TOKENS - MAX_STEP_TOKENS
"""Most tokens before the first step of a stretch; the policy's own Notepad may be any part of them."""


class ArmKind(NamedTuple):
    """What one arm changes."""

    overrides: tuple[str, ...]
    """Overrides in addition to those that all arms share."""
    questions: Literal["training", "hard"] = "training"


SCAFFOLD = "scaffold"
"""Arm that is not trained."""
_KEEP = "pivot.resampling.equal_rewards=keep"
ARMS: Mapping[str, ArmKind] = {
    SCAFFOLD: ArmKind((_KEEP,)),
    "l0": ArmKind((_KEEP,)),
    "grpo": ArmKind((_KEEP, "algorithm.adv_estimator=grpo")),
    "l0_gamma_1": ArmKind((_KEEP, "pivot.notebook.gamma=1.0")),
    "l0_no_notepad": ArmKind((_KEEP, "pivot.notebook.notepad=False")),
    "l0_hard": ArmKind((_KEEP,), "hard"),
    "l0_hard_dynamic": ArmKind(("pivot.resampling.equal_rewards=keep_half",), "hard"),
}
"""{name: arm}; all but the last keep groups of equal rewards, so that all updates have the same size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(EvaluatedTraining):
    """One arm with one seed: a training, and the evaluation of its policy on the held-out questions."""

    @property
    def is_trained(self) -> bool:
        return self.name != SCAFFOLD

    @property
    def save_freq(self) -> int:
        return 5

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=l0"),
            *machine_overrides(),
            *ARMS[self.name].overrides,
            f"pivot.rollout.tools={self.tools}",
            f"pivot.notebook.max_context_tokens={MAX_CONTEXT_TOKENS}",
            f"pivot.notebook.max_step_tokens={MAX_STEP_TOKENS}",
            f"pivot.notebook.max_steps={MAX_STEPS}",
            *self.sizes,
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={2 * self.group_size}",
            *self.dumps_and_evaluation,
            "trainer.project_name=l0",
        ]
