"""EvaluatedTraining: an arm of a study with one seed, whose stock command trains and then evaluates."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from examples.quickstart.training import Training, keep_steps, kept_steps, shell, train
from verl_pivot.data.rollout_dumps import FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedTraining(Training):
    """A training, and the evaluation of its policy on held-out questions."""

    name: str
    """Name of the arm."""
    held_out: Path
    """Parquet file of the held-out questions."""
    tools: Path
    num_samples: int = 1
    """Number of trajectories for each held-out question in an evaluation."""
    only_evaluates: bool = False
    """Whether the launch only evaluates the policy: for a training that was interrupted after its last checkpoint."""

    @property
    def is_trained(self) -> bool:
        """Whether the arm is trained; False: the base policy is only evaluated."""
        raise NotImplementedError

    @property
    def test_freq(self) -> int:
        """Steps between two evaluations; there is always an evaluation after the last step."""
        return self.num_steps

    @property
    def num_kept_checkpoints(self) -> int:
        """Number of checkpoints that verl keeps.

        If several are saved, two are kept: a training goes back to the earlier one if it was interrupted in the
        evaluation that follows the later one.
        """
        return 1 if self.save_freq >= self.num_steps else 2

    @property
    def dumps_and_evaluation(self) -> list[str]:
        """Overrides for the dumps, and for evaluations whose answers are sampled as in training."""
        trains = self.is_trained and not self.only_evaluates
        asked = ("do_sample=True", "temperature=1.0", f"n={self.num_samples}")
        return [
            f"data.val_files={self.held_out}",
            *(f"actor_rollout_ref.rollout.val_kwargs.{each}" for each in asked),
            f"trainer.rollout_data_dir={self.rollouts}",
            f"trainer.validation_data_dir={self.validation}",
            f"trainer.val_before_train={not trains}",
            *(() if trains else ("trainer.val_only=True",)),
            f"trainer.test_freq={self.test_freq}",
            f"trainer.max_actor_ckpt_to_keep={self.num_kept_checkpoints}",
            f"trainer.experiment_name={self.name}",
        ]

    @property
    def rollouts(self) -> Path:
        """Folder of verl's dumps, one for each step; its subfolder `pivot` has all rollouts."""
        return self.folder / "rollouts"

    @property
    def validation(self) -> Path:
        return self.folder / "validation"

    @property
    def latest(self) -> Path:
        """File in which verl writes the step of the last checkpoint, from which a launch resumes."""
        return self.folder / "latest_checkpointed_iteration.txt"

    @property
    def has_last_checkpoint(self) -> bool:
        return self.is_trained and self.latest.is_file() and self.latest.read_text() == str(self.num_steps)

    @property
    def evaluated_steps(self) -> list[int]:
        """Steps after which the policy is evaluated on the held-out rows, in order."""
        if not self.is_trained:
            return [0]
        return sorted({*range(self.test_freq, self.num_steps, self.test_freq), self.num_steps})

    def evaluation(self, step: int) -> Path:
        """Dump of the trajectories on the held-out questions after a step."""
        return self.validation / FOLDER / f"{step}.jsonl"

    @property
    def evaluated(self) -> Path:
        """Dump of the trajectories of the trained policy on the held-out questions."""
        return self.evaluation(self.evaluated_steps[-1])


def train_and_evaluate(arm: EvaluatedTraining, console: Console) -> None:
    """Run the training command, which also evaluates on the held-out questions, unless that evaluation is there.

    An interrupted training resumes from its last checkpoint up to which nothing is missing, or starts over if there is
    none (`go_back`). If it was interrupted between its only checkpoint and the evaluation, only the evaluation is run.

    Raises:
        SystemExit: If the command fails, or ends without the evaluation.
    """
    if arm.folder.is_dir():
        keep_steps(arm)  # also of a launch that was killed after its last evaluation
    go_back(arm)
    launch = replace(arm, only_evaluates=not arm.evaluated.is_file() and arm.has_last_checkpoint)
    console.print(shell(launch.command), highlight=False, markup=False, soft_wrap=True, style="dim")
    if not arm.evaluated.is_file():
        train(launch)
    if not arm.evaluated.is_file():
        raise SystemExit(f"{arm.folder} has no answers to the held-out questions: remove it, and run the command again")


def go_back(arm: EvaluatedTraining) -> None:
    """Set an interrupted training to its last checkpoint up to which nothing is missing, or make it start over.

    verl saves a checkpoint, then plays the held-out rows, and then logs the step. A launch that was interrupted in
    between would resume after this step, and its evaluation and its metrics would be missing for good. Nothing changes
    if only the last evaluation is missing and there is no earlier checkpoint, since the last one can be evaluated.
    """
    if not arm.latest.is_file():
        return
    logged = {int(step["step"]) for step in kept_steps(arm)}
    actors = arm.folder.glob("global_step_*/actor")  # verl removes the actor of a checkpoint that it does not keep
    saved = sorted(int(each.parent.name.removeprefix("global_step_")) for each in actors)
    whole = [step for step in saved if logged.issuperset(range(1, step + 1)) and not _unanswered(arm, step)]
    if whole:
        for step in arm.evaluated_steps:
            if step > whole[-1]:
                arm.evaluation(step).unlink(missing_ok=True)
        arm.latest.write_text(str(whole[-1]))
    elif not arm.has_last_checkpoint or _unanswered(arm, arm.num_steps - 1):
        _start_over(arm)


def _unanswered(arm: EvaluatedTraining, last: int) -> list[int]:
    """Steps up to `last` whose evaluation is missing."""
    return [step for step in arm.evaluated_steps if step <= last and not arm.evaluation(step).is_file()]


def _start_over(arm: EvaluatedTraining) -> None:
    """Remove what earlier launches left.

    The evaluations are removed before the file with the step from which verl resumes, so that a command that is
    interrupted in between starts over again.
    """
    shutil.rmtree(arm.validation, ignore_errors=True)
    arm.latest.unlink()
    for folder in (arm.rollouts, *arm.folder.glob("global_step_*")):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (arm.metrics, arm.log):
        file.unlink(missing_ok=True)
