"""The example's training: the stock command with `+method=zerotir`, and small sizes."""

from dataclasses import dataclass
from pathlib import Path

from examples.grpo_roc.transcripts import TOOLS
from examples.machine import machine_overrides
from examples.quickstart.training import Training
from examples.zerotir.transcripts import MAX_RUNS

MAX_PROMPT_TOKENS = 64
MAX_RESPONSE_TOKENS = 224
"""Tokens of a whole trajectory, outputs included."""
MAX_TURN_TOKENS = 48
MAX_OBSERVATION_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroTIRTraining(Training):
    """The training of one seed."""

    validation: Path

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=zerotir"),
            *machine_overrides(),
            f"pivot.rollout.tools={TOOLS}",
            f"pivot.rollout.max_turns={MAX_RUNS + 1}",
            f"pivot.rollout.max_turn_tokens={MAX_TURN_TOKENS}",
            f"pivot.rollout.max_observation_tokens={MAX_OBSERVATION_TOKENS}",
            *self.sizes,
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"data.val_files={self.validation}",
            "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
            f"trainer.rollout_data_dir={self.rollouts}",
            "trainer.test_freq=-1",
            "trainer.project_name=zerotir",
            "trainer.experiment_name=zerotir",
        ]

    @property
    def rollouts(self) -> Path:
        """Folder of verl's dumps, one for each step; its subfolder `pivot` has all rollouts."""
        return self.folder / "rollouts"
