"""Commands of verl-pivot and launches of stock verl, run as a user does: in a subprocess, with almost no variables."""

import os
import subprocess
import sys
from pathlib import Path

from verl_pivot.local.console_log import logged_steps
from verl_pivot.local.trial_report import LOG_NAME
from verl_pivot.smoke.trial_launch import training

__all__ = ("LAUNCH_SECONDS", "MINIMAL", "cli", "launch", "step_metrics", "training")

LAUNCH_SECONDS = 700.0
"""Time limit of one launch, which takes 80 seconds on two idle cores; tests set `pytest.mark.timeout` above it."""
MINIMAL = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "OMP_NUM_THREADS": "1"}
"""Environment of commands: one thread for torch, since two wait for each other where other processes use the cores."""


def cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one `verl-pivot` command."""
    command = [str(Path(sys.executable).parent / "verl-pivot"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**MINIMAL, "COLUMNS": "200"})


def launch(folder: Path, *overrides: str, timeout_seconds: float = LAUNCH_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run `python -m verl.trainer.main_ppo` in `folder`; the result's `stdout` is its log, `stderr` its output."""
    launches = folder / "outputs" / "local"
    earlier = set(launches.glob("*"))
    result = subprocess.run(
        [sys.executable, "-m", "verl.trainer.main_ppo", *overrides],
        cwd=folder,
        env=MINIMAL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    logs = [run / LOG_NAME for run in launches.glob("*") if run not in earlier]
    log = "".join(path.read_text(errors="replace") for path in logs if path.exists())
    return subprocess.CompletedProcess(result.args, result.returncode, stdout=log, stderr=result.stdout)


def step_metrics(output: str) -> dict[int, dict[str, float]]:
    """{step: {metric: value}} as verl's console logger printed them."""
    return {step.number: step.metrics for step in logged_steps(output)}
