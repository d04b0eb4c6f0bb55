"""Fresh problems as rows of a verl parquet, and the stock commands of the trainings that are compared."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet

from examples.grpo_roc.problems import make_problem
from examples.grpo_roc.transcripts import TOOLS
from examples.machine import machine_overrides
from examples.quickstart.training import Training
from verl_pivot.types import JsonObject

ARMS = {
    "grpo": ("pivot.resampling.oversample=1",),
    "grpo_roc_paper": ("pivot.resampling.mode=paper",),
    "grpo_roc_released": ("pivot.resampling.mode=released",),
    "grpo_roc_partial": ("pivot.resampling.mode=paper", "+tail=partial"),
}
"""{name of the arm: overrides in which it differs from the other arms}. The first arm that is run is the one that the
others are compared with."""
DEFAULT_ARMS = ("grpo", "grpo_roc_paper", "grpo_roc_released")
MAX_PROMPT_TOKENS = 64
MAX_RESPONSE_TOKENS = 224
"""Tokens of a whole trajectory, observations included."""
MAX_TURNS = 5
MAX_TURN_TOKENS = 40
MAX_OBSERVATION_TOKENS = 64


def write_problems(path: Path, seeds: Iterable[int]) -> Path:
    """Write one row per problem, which verl's own reward for MATH scores by the boxed answer."""
    rows = [make_row(seed) for seed in seeds]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def make_row(seed: int) -> JsonObject:
    """Row of a problem, in verl's own columns."""
    problem = make_problem(seed)
    return {
        "data_source": "DigitalLearningGmbH/MATH-lighteval",
        "prompt": [{"role": "user", "content": problem.text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
        "extra_info": {"index": seed, "family": problem.family},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(Training):
    """One training: an arm of the comparison with one seed."""

    name: str
    """Name of the arm, a key of ARMS."""
    validation: Path

    @property
    def command(self) -> list[str]:
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=grpo_roc"),
            *machine_overrides(),
            *ARMS[self.name],
            "pivot.resampling.equal_rewards=keep",  # so that all arms make updates of one size
            f"pivot.rollout.tools={TOOLS}",
            f"pivot.rollout.max_turns={MAX_TURNS}",
            f"pivot.rollout.max_turn_tokens={MAX_TURN_TOKENS}",
            f"pivot.rollout.max_observation_tokens={MAX_OBSERVATION_TOKENS}",
            *self.sizes,
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"data.max_response_length={MAX_RESPONSE_TOKENS}",
            f"data.val_files={self.validation}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}",
            "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
            f"trainer.rollout_data_dir={self.rollouts}",
            "trainer.test_freq=-1",
            "trainer.project_name=grpo_roc",
            f"trainer.experiment_name={self.name}",
        ]

    @property
    def rollouts(self) -> Path:
        """Folder of verl's dumps, one for each step; its subfolder `pivot` has all rollouts."""
        return self.folder / "rollouts"
