"""A launch with `+local=cpu` prints a few lines, and leaves no process behind however it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.rollout.test_pivot_training import write_questions
from tests.support.launching import LAUNCH_SECONDS, MINIMAL, cli, training
from tests.support.tiny_model import write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200)]


def write_pivots(folder: Path, model: Path) -> Path:
    raw, trajectories, pivots = (folder / name for name in ("raw.jsonl", "t.jsonl", "pivots.parquet"))
    write_questions(raw, 40)
    cli("import", raw, "--out", trajectories)
    cli("select", trajectories, "--keep", "all", "--model", model, "--out", pivots, "--validation-share", "0.2")
    return pivots


def test_a_trial_killed_while_its_engine_runs_leaves_no_process(tmp_path: Path) -> None:
    """Send SIGKILL, which the launch cannot handle: its supervisor must end Ray, SGLang and all workers."""
    model = write_model(tmp_path / "model")
    overrides = training(model, write_pivots(tmp_path, model), batch_size=8, n=4, num_steps=1000)
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "+method=pivotrl", "+local=cpu", *overrides]
    command += ["data.max_prompt_length=256", "data.max_response_length=24"]
    with (tmp_path / "printed").open("wb") as printed:
        launch = subprocess.Popen(command, cwd=tmp_path, env=MINIMAL, stdout=printed, stderr=subprocess.STDOUT)
    process = psutil.Process(launch.pid)
    try:
        wait_for(tmp_path / "printed", "rollout engine and reward workers run")
        below = process.children(recursive=True)
        names = {each.name() for each in below}

        os.kill(launch.pid, signal.SIGKILL)

        assert launch.wait() == -signal.SIGKILL
        assert {"raylet", "gcs_server", "sglang::scheduler"} <= names
        _, left = psutil.wait_procs(below, timeout=60)
        assert left == []
    finally:
        if launch.poll() is None:
            launch.terminate()
            launch.wait()


def wait_for(printed: Path, text: str) -> None:
    deadline = time.monotonic() + LAUNCH_SECONDS
    while text not in printed.read_text():
        assert time.monotonic() < deadline, printed.read_text()
        time.sleep(0.2)
