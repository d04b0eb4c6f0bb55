"""EvaluatedTraining: an arm of a study with one seed, whose stock command trains and then asks held-out questions."""

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from examples.quickstart.training import Training, shell, train
from verl_pivot.data.rollout_dumps import FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedTraining(Training):
    """A training, and the evaluation of its policy on held-out questions."""

    name: str
    """Name of the arm."""
    held_out: Path
    """Parquet file of the held-out questions."""
    tools: Path
    only_evaluates: bool = False
    """Whether the launch asks the trained policy alone; for a training that was ended behind its last checkpoint."""

    @property
    def is_trained(self) -> bool:
        """Whether there is a training, and not the evaluation of the base policy alone."""
        raise NotImplementedError

    @property
    def dumps_and_evaluation(self) -> list[str]:
        """Overrides for the dumps, and for held-out questions that are asked as in training: sampled, once each."""
        trains = self.is_trained and not self.only_evaluates
        return [
            f"data.val_files={self.held_out}",
            *(f"actor_rollout_ref.rollout.val_kwargs.{each}" for each in ("do_sample=True", "temperature=1.0", "n=1")),
            f"trainer.rollout_data_dir={self.rollouts}",
            f"trainer.validation_data_dir={self.validation}",
            f"trainer.val_before_train={not trains}",
            *(() if trains else ("trainer.val_only=True",)),
            "trainer.max_actor_ckpt_to_keep=1",
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
    def has_last_checkpoint(self) -> bool:
        latest = self.folder / "latest_checkpointed_iteration.txt"
        return self.is_trained and latest.is_file() and latest.read_text() == str(self.num_steps)

    @property
    def evaluated(self) -> Path:
        """Dump of the trajectories on the held-out questions."""
        return self.validation / FOLDER / f"{self.num_steps if self.is_trained else 0}.jsonl"


def train_and_evaluate(arm: EvaluatedTraining, console: Console) -> None:
    """Run the training command, which also asks the held-out questions, unless their answers are there.

    A training that was ended between its last checkpoint and these questions asks them of that checkpoint.

    Raises:
        SystemExit: If it fails, or ends without having asked them.
    """
    launch = replace(arm, only_evaluates=not arm.evaluated.is_file() and arm.has_last_checkpoint)
    console.print(shell(launch.command), highlight=False, markup=False, soft_wrap=True, style="dim")
    if not arm.evaluated.is_file():
        train(launch)
    if not arm.evaluated.is_file():
        raise SystemExit(f"{arm.folder} has no answers to the held-out questions: remove it, and run the command again")
