"""EvaluatedTraining: an arm of a study with one seed, whose stock command trains and then asks held-out questions."""

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
    """Trajectories of each held-out question in an evaluation."""
    only_evaluates: bool = False
    """Whether the launch asks the trained policy alone; for a training that was ended behind its last checkpoint."""

    @property
    def is_trained(self) -> bool:
        """Whether there is a training, and not the evaluation of the base policy alone."""
        raise NotImplementedError

    @property
    def test_freq(self) -> int:
        """Steps between two evaluations; there is always one behind the last step."""
        return self.num_steps

    @property
    def num_kept_checkpoints(self) -> int:
        """Two where there are several, so that a training can go back behind one whose evaluation was ended."""
        return 1 if self.save_freq >= self.num_steps else 2

    @property
    def dumps_and_evaluation(self) -> list[str]:
        """Overrides for the dumps, and for held-out questions whose answers are sampled as in training."""
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
        """Folder of verl's dump of each step; its folder `pivot` has all rollouts."""
        return self.folder / "rollouts"

    @property
    def validation(self) -> Path:
        return self.folder / "validation"

    @property
    def latest(self) -> Path:
        """File in which verl writes the step of the last checkpoint, with which a launch goes on."""
        return self.folder / "latest_checkpointed_iteration.txt"

    @property
    def has_last_checkpoint(self) -> bool:
        return self.is_trained and self.latest.is_file() and self.latest.read_text() == str(self.num_steps)

    @property
    def evaluated_steps(self) -> list[int]:
        """Steps behind which the policy plays the held-out rows, in order."""
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
    """Run the training command, which also asks the held-out questions, unless their answers are there.

    A training that was ended goes on from its last checkpoint up to which nothing is missing, or starts over if there
    is none (`go_back`). One that was ended between its only checkpoint and these questions asks them of it.

    Raises:
        SystemExit: If it fails, or ends without having asked them.
    """
    if arm.folder.is_dir():
        keep_steps(arm)  # of a launch that was killed behind its last evaluation, too
    go_back(arm)
    launch = replace(arm, only_evaluates=not arm.evaluated.is_file() and arm.has_last_checkpoint)
    console.print(shell(launch.command), highlight=False, markup=False, soft_wrap=True, style="dim")
    if not arm.evaluated.is_file():
        train(launch)
    if not arm.evaluated.is_file():
        raise SystemExit(f"{arm.folder} has no answers to the held-out questions: remove it, and run the command again")


def go_back(arm: EvaluatedTraining) -> None:
    """Let a training that was ended go on from its last checkpoint up to which nothing is missing, or start over.

    verl saves a checkpoint, plays the held-out rows, and logs the step then: a launch that was ended in between would
    go on behind the step, and its evaluation and its metrics would be missing for good. Nothing changes where the last
    evaluation alone is missing and there is no earlier checkpoint, since the last one can be asked.
    """
    if not arm.latest.is_file():
        return
    logged = {int(step["step"]) for step in kept_steps(arm)}
    actors = arm.folder.glob("global_step_*/actor")  # which alone verl removes of a checkpoint that it does not keep
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
    """Steps up to the last one whose evaluation is missing."""
    return [step for step in arm.evaluated_steps if step <= last and not arm.evaluation(step).is_file()]


def _start_over(arm: EvaluatedTraining) -> None:
    """Remove what earlier launches left.

    The evaluations go first, and the step with which verl goes on only then, so that a command that is ended in
    between starts over again.
    """
    shutil.rmtree(arm.validation, ignore_errors=True)
    arm.latest.unlink()
    for folder in (arm.rollouts, *arm.folder.glob("global_step_*")):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (arm.metrics, arm.log):
        file.unlink(missing_ok=True)
