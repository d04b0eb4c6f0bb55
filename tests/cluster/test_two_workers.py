"""Each method takes two steps of the stock trainer with two workers and two replicas of the engine."""

import json
from pathlib import Path

import pytest

from tests.support.launching import cli
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.configuration import config_groups

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200), needs_sandbox]


@pytest.mark.parametrize("method", config_groups()["method"])
def test_two_steps_with_two_workers_and_two_engines(tmp_path: Path, method: str) -> None:
    done = cli("smoke", method, "--workers", "2", "--json", "--out", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["methods"]
    assert [phase for phase in result["phases"] if phase.startswith("step ")] == ["step 1", "step 2"]
