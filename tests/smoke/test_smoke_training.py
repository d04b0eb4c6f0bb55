"""`verl-pivot smoke` runs the stock trainer: PPO with a critic, and programs in the sandbox."""

import json
from pathlib import Path

import pytest

from tests.support.launching import LAUNCH_SECONDS, cli
from tests.support.sandbox_machine import needs_sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 200), needs_sandbox]


def test_two_steps_of_a_method_say_what_they_took(tmp_path: Path) -> None:
    done = cli("smoke", "retool", "--json", "--out", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    (result,) = found["methods"]
    assert (found["works"], found["doctor"], result["complaint"]) == (True, [], None)
    assert list(result["phases"]) == [
        "starting Ray", "reading the data", "loading the policy", "starting the rollout engine", "step 1", "step 2",
    ]  # fmt: skip
    assert result["metrics"]["rollout/calls_per_trajectory"] > 0.0
    assert result["overrides"][0] == "+method=retool"
    assert not (tmp_path / "retool" / "checkpoints").exists()
