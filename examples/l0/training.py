"""The study's arms: what each changes in L0, and its stock command, which trains and then asks held-out questions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from examples.l0.transcripts import MAX_CONTEXT_TOKENS, MAX_STEP_TOKENS, MAX_STEPS
from examples.quickstart.training import Training
from verl_pivot.data.rollout_dumps import FOLDER

MAX_PROMPT_TOKENS = MAX_CONTEXT_TOKENS - MAX_STEP_TOKENS
"""Tokens before the first step of a stretch, of which the policy's own Notepad may be any part."""


class ArmKind(NamedTuple):
    """What one arm changes."""

    overrides: tuple[str, ...]
    """Overrides beside those that all arms share."""
    questions: Literal["training", "hard"] = "training"


SCAFFOLD = "scaffold"
"""Arm that is not trained."""
_KEEP = "pivot.resampling.equal_rewards=keep"
ARMS: Mapping[str, ArmKind] = {
    SCAFFOLD: ArmKind((_KEEP, "trainer.val_only=True")),
    "l0": ArmKind((_KEEP,)),
    "grpo": ArmKind((_KEEP, "algorithm.adv_estimator=grpo")),
    "l0_gamma_1": ArmKind((_KEEP, "pivot.notebook.gamma=1.0")),
    "l0_no_notepad": ArmKind((_KEEP, "pivot.notebook.notepad=False")),
    "l0_hard": ArmKind((_KEEP,), "hard"),
    "l0_hard_dynamic": ArmKind(("pivot.resampling.equal_rewards=keep_half",), "hard"),
}
"""{name: arm}; all but the last keep groups of equal rewards, so that every update has one size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(Training):
    """One arm with one seed: a training, and the evaluation of its policy on the held-out questions."""

    name: str
    """A key of ARMS."""
    held_out: Path
    tools: Path

    @property
    def save_freq(self) -> int:
        return 5

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=l0", "+local=cpu", "pivot.trial_steps=null"),
            *ARMS[self.name].overrides,
            f"pivot.rollout.tools={self.tools}",
            f"pivot.notebook.max_context_tokens={MAX_CONTEXT_TOKENS}",
            f"pivot.notebook.max_step_tokens={MAX_STEP_TOKENS}",
            f"pivot.notebook.max_steps={MAX_STEPS}",
            *self.sizes,
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"data.val_files={self.held_out}",
            # The policy is evaluated as it is trained: sampled, one answer for each question.
            *(f"actor_rollout_ref.rollout.val_kwargs.{each}" for each in ("do_sample=True", "temperature=1.0", "n=1")),
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={2 * self.group_size}",
            f"trainer.rollout_data_dir={self.rollouts}",
            f"trainer.validation_data_dir={self.validation}",
            f"trainer.val_before_train={self.name == SCAFFOLD}",
            f"trainer.test_freq={self.num_steps}",
            "trainer.max_actor_ckpt_to_keep=1",
            "trainer.project_name=l0",
            f"trainer.experiment_name={self.name}",
        ]

    @property
    def rollouts(self) -> Path:
        """Folder of verl's dump of each step; its folder `pivot` has all rollouts."""
        return self.folder / "rollouts"

    @property
    def validation(self) -> Path:
        return self.folder / "validation"

    @property
    def evaluated(self) -> Path:
        """Dump of the trajectories on the held-out questions."""
        step = 0 if self.name == SCAFFOLD else self.num_steps
        return self.validation / FOLDER / f"{step}.jsonl"
