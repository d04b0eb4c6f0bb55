"""Settings of a training -> the stock verl command, which is run with a progress bar over its log."""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from examples.machine import machine_overrides
from examples.quickstart.policy import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS
from verl_pivot.engines.server import tied_to_parent
from verl_pivot.local.console_log import logged_steps
from verl_pivot.local.trial_report import LOG_NAME
from verl_pivot.types import JsonObject

PROJECT = Path(__file__).parents[2]
"""Folder of the project, which paths in `Training.settings` leave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One run of the stock trainer."""

    model: Path
    rows: Path
    """Parquet file of the training rows."""
    folder: Path
    """Folder for checkpoints, log and metrics."""
    seed: int
    num_steps: int
    learning_rate: float
    batch_size: int
    group_size: int

    @property
    def save_freq(self) -> int:
        """Steps between checkpoints, from which an interrupted training continues."""
        return self.num_steps

    @property
    def command(self) -> list[str]:
        """The command that a user types, with small sizes."""
        return [
            *("python", "-m", "verl.trainer.main_ppo", "+method=pivotrl"),
            *machine_overrides(),
            f"data.max_response_length={MAX_NEW_TOKENS}",
            f"actor_rollout_ref.ref.log_prob_{self._micro_batch}",
            *self.sizes,
            f"trainer.rollout_data_dir={self.folder / 'rollouts'}",
            "trainer.project_name=quickstart",
            "trainer.experiment_name=pivotrl",
        ]

    @property
    def micro_batch_size(self) -> int:
        """Number of rollouts in a micro-batch: two groups, which need little padding and few passes."""
        return 2 * self.group_size

    @property
    def _micro_batch(self) -> str:
        return f"micro_batch_size_per_gpu={self.micro_batch_size}"

    @property
    def sizes(self) -> list[str]:
        """Overrides that do not depend on the method."""
        return [
            f"data.train_files={self.rows}",
            f"data.train_batch_size={self.batch_size}",
            f"data.seed={self.seed}",
            f"data.max_prompt_length={MAX_PROMPT_TOKENS}",
            f"actor_rollout_ref.model.path={self.model}",
            f"actor_rollout_ref.actor.optim.lr={self.learning_rate}",
            f"actor_rollout_ref.actor.ppo_{self._micro_batch}",
            f"actor_rollout_ref.rollout.n={self.group_size}",
            f"actor_rollout_ref.rollout.log_prob_{self._micro_batch}",
            f"actor_rollout_ref.actor.data_loader_seed={self.seed}",
            f"actor_rollout_ref.rollout.seed={self.seed}",
            "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]",
            "trainer.total_epochs=1000",
            f"trainer.total_training_steps={self.num_steps}",
            f"trainer.save_freq={self.save_freq}",
            "trainer.val_before_train=False",
            f"trainer.default_local_dir={self.folder}",
            "trainer.resume_mode=auto",
            f"hydra.run.dir={self.folder}",
        ]

    @property
    def settings(self) -> JsonObject:
        """{override: value} of the command, with paths relative to the training's folder or to this project.

        So the folder may be moved, and the training may be continued from another copy of the project.
        """
        here = (each.replace(str(self.folder.parent), "..").replace(f"{PROJECT}/", "") for each in self.command[3:])
        return {name: value for name, _, value in (each.partition("=") for each in here)}

    @property
    def log(self) -> Path:
        """The full log of the launch; on a GPU, that is what it prints."""
        return self.folder / LOG_NAME if "+local=cpu" in self.command else self.printed

    @property
    def printed(self) -> Path:
        """Output of the launch apart from its log, with the reason if it failed."""
        return self.folder / "printed.txt"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def trained(self) -> Path:
        """The trained policy as a Hugging Face checkpoint."""
        return self.folder / f"global_step_{self.num_steps}" / "actor" / "huggingface"


def train(training: Training) -> None:
    """Run the trainer and follow its log.

    Raises:
        SystemExit: If it fails, with the end of what it printed.
    """
    training.folder.mkdir(parents=True, exist_ok=True)
    keep_steps(training)  # of an earlier launch that was killed
    training.log.unlink(missing_ok=True)
    with training.printed.open("w") as printed:
        process = subprocess.Popen(
            tied_to_parent(*training.command[2:]),  # the trainer ends when the quickstart is killed
            stdout=printed,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        try:
            _follow(training, process)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            keep_steps(training)
    if process.returncode != 0:
        raise SystemExit(f"training failed; the end of {training.printed}:\n{_tail(training.printed)}")


def keep_steps(training: Training) -> None:
    """Add the steps in the log to those in `metrics`, where a launch that goes on from a checkpoint finds them."""
    steps = {step["step"]: step for step in [*kept_steps(training), *read_steps(training.log)]}
    training.metrics.write_text("".join(json.dumps(steps[number]) + "\n" for number in sorted(steps)))


def kept_steps(training: Training) -> list[dict[str, float]]:
    """[num_steps] metrics of each training step of all launches, in order; a step taken twice counts once."""
    lines = training.metrics.read_text().splitlines() if training.metrics.is_file() else []
    return [json.loads(line) for line in lines]


def _follow(training: Training, process: subprocess.Popen[bytes]) -> None:
    columns = (
        TextColumn("Training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("", total=training.num_steps, note="starting Ray, the actor and SGLang ...")
        while process.poll() is None:
            time.sleep(1.0)
            steps = read_steps(training.log)
            if steps:
                note = f"mean reward {steps[-1]['critic/score/mean']:.2f}"
                progress.update(task, completed=steps[-1]["step"], note=note)


def read_steps(log: Path) -> list[dict[str, float]]:
    """[num_steps] metrics of each finished training step, from the output of verl's console logger."""
    if not log.exists():
        return []
    steps = logged_steps(log.read_text(errors="replace"))
    return [{"step": float(step.number), **step.metrics} for step in steps if step.is_training]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def shell(command: Sequence[str]) -> str:
    """The command in the form in which a user types it, with one argument per line."""
    return " \\\n    ".join(command)
