"""Overrides of a launch -> LaunchOutcome: its steps, how long each phase took, and the cause if it failed."""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.engines.server import no_proxy_for_loopback
from verl_pivot.local.console_log import logged_steps
from verl_pivot.local.supervision import fork_supervised
from verl_pivot.local.trial_report import LOG_NAME, TrialReport
from verl_pivot.planning.overrides import override_value

NUM_STEPS = 2
MODULE = "verl.trainer.main_ppo"
_PRINTED = "printed.log"
_NEEDED = ("critic/score/mean", "actor/pg_loss", "actor/grad_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOutcome:
    """Outcome of one launch."""

    exit_code: int
    seconds: float
    phases: Mapping[str, float]
    """{phase: seconds}, in their order; each training step is a phase."""
    metrics: Mapping[int, Mapping[str, float]]
    """{step: {metric: value}}"""
    log: Path
    cause: str | None
    """Why the launch did not complete its steps; None if it did."""


def training(model: Path, rows: Path, *, batch_size: int, n: int, num_steps: int) -> list[str]:
    """Overrides of a tiny training; the caller adds those of the method and of the machine."""
    micro = "micro_batch_size_per_gpu"
    return [
        f"data.train_files={override_value(str(rows))}",
        f"data.train_batch_size={batch_size}",
        f"actor_rollout_ref.model.path={override_value(str(model))}",
        f"actor_rollout_ref.rollout.n={n}",
        f"actor_rollout_ref.actor.ppo_{micro}=1",
        f"actor_rollout_ref.rollout.log_prob_{micro}=1",
        f"actor_rollout_ref.ref.log_prob_{micro}=1",
        f"trainer.total_training_steps={num_steps}",
    ]


def nothing_saved(folder: Path) -> dict[str, str]:
    """{key: value} of a launch that saves and resumes no checkpoint, and writes its rollouts into this folder."""
    return {
        "trainer.val_before_train": "False",
        "trainer.test_freq": "-1",
        "trainer.save_freq": "-1",
        "trainer.resume_mode": "disable",
        "trainer.logger": "[console]",
        "trainer.default_local_dir": override_value(str(folder / "checkpoints")),
        "trainer.rollout_data_dir": override_value(str(folder / "rollouts")),
    }


def run_launch(
    folder: Path, overrides: Sequence[str], say: Callable[[str], None], place: Path | None = None
) -> LaunchOutcome:
    """Launch the stock trainer and wait for its end; all its processes end with this one.

    Args:
        folder: Folder for its logs.
        overrides: Words after the module's name.
        say: Called with each line about what happens.
        place: Working directory; None: the folder.

    Raises:
        SystemExit: If this process is asked to end by a signal.
    """
    printed, log = folder / _PRINTED, folder / "run" / LOG_NAME
    printed.touch()
    words = [sys.executable, "-m", MODULE, *overrides, f"hydra.run.dir={override_value(str(log.parent))}"]
    supervisor = fork_supervised(printed)
    if supervisor is None:
        os.chdir(place or folder)
        os.execve(sys.executable, words, {**os.environ, **no_proxy_for_loopback(os.environ)})
    began, report = time.monotonic(), TrialReport()
    is_local = "+local=cpu" in overrides  # such a launch writes its log itself, and prints a summary of it
    read = log if is_local else printed
    position = 0

    def tick() -> None:
        nonlocal position
        if not read.exists():
            return
        with read.open("rb") as file:
            file.seek(position)
            for said in report.read_new(file, time.monotonic() - began):
                say(said)
            position = file.tell()

    code = supervisor.follow(tick)
    tick()
    seconds = time.monotonic() - began
    text = read.read_text(errors="replace") if read.exists() else ""
    metrics = {step.number: step.metrics for step in logged_steps(text) if step.is_training}
    return LaunchOutcome(
        exit_code=code,
        seconds=seconds,
        phases=_phases(report.moments, metrics),
        metrics=metrics,
        log=read if text else printed,
        cause=_failure(printed, code) if code else missing_of_steps(metrics),
    )


def _phases(moments: Mapping[str, float], metrics: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    ends = [0.0, *moments.values()]
    phases = {phase: end - begin for phase, begin, end in zip(moments, ends, ends[1:], strict=False)}
    return phases | {f"step {number}": found.get("timing_s/step", math.nan) for number, found in metrics.items()}


def _failure(printed: Path, code: int) -> str:
    report = TrialReport()
    for line in printed.read_text(errors="replace").splitlines():
        report.read(line, 0.0)
    return report.failure(code).removeprefix("verl-pivot: ")


def missing_of_steps(metrics: Mapping[int, Mapping[str, float]], num_steps: int = NUM_STEPS) -> str | None:
    """What is missing from a launch that ended well: steps, metrics, or finite values; None if nothing is."""
    if sorted(metrics) != list(range(1, num_steps + 1)):
        return f"the launch ended without an error, but logged the steps {sorted(metrics)} instead of {num_steps} steps"
    for number, found in metrics.items():
        for name in _NEEDED:
            if not math.isfinite(found.get(name, math.nan)):
                return f"step {number} has {name}={found.get(name)}, which is not a finite number"
    return None
