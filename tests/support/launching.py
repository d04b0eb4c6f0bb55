"""Commands of verl-pivot and launches of stock verl, run as a user does: in a subprocess, with almost no variables."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from verl_pivot.local.console_log import logged_steps
from verl_pivot.local.trial_report import LOG_NAME
from verl_pivot.smoke.trial_launch import training

__all__ = ("LAUNCH_SECONDS", "MINIMAL", "cli", "killed_launch", "launch", "step_metrics", "training")

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
    log = "".join(map(_log_of, sorted(set(launches.glob("*")) - earlier)))
    return subprocess.CompletedProcess(result.args, result.returncode, stdout=log, stderr=result.stdout)


def killed_launch(folder: Path, *overrides: str, after: str) -> tuple[str, set[str], list[psutil.Process]]:
    """Run the only launch in `folder` until it has printed this text, and kill it.

    SIGKILL cannot be handled by the launch: its supervisor must end Ray, SGLang and all workers.

    Returns:
        The launch's log; names of the processes below it when it was killed; those that were left a minute later.
    """
    printed = folder / "printed"
    with printed.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "verl.trainer.main_ppo", *overrides],
            cwd=folder,
            env=MINIMAL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + LAUNCH_SECONDS
        while after not in printed.read_text():
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() < deadline, printed.read_text()
            time.sleep(0.2)
        below = psutil.Process(process.pid).children(recursive=True)
        names = {each.name() for each in below}

        os.kill(process.pid, signal.SIGKILL)

        assert process.wait() == -signal.SIGKILL
        _, left = psutil.wait_procs(below, timeout=60)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    (run,) = (folder / "outputs" / "local").glob("*")
    return _log_of(run), names, left


def _log_of(run: Path) -> str:
    path = run / LOG_NAME
    return path.read_text(errors="replace") if path.exists() else ""


def step_metrics(output: str) -> dict[int, dict[str, float]]:
    """{step: {metric: value}} as verl's console logger printed them."""
    return {step.number: step.metrics for step in logged_steps(output)}
