"""The stock trainer with environments of other frameworks' real packages: two steps of a policy that was taught.

Each test needs the interpreter that an environment variable names, as in test_openenv.py, test_nemo_gym.py and
test_verifiers_environments.py.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from tests.rollout.test_tool_training import tool_training
from tests.support.framework_servers import served
from tests.support.launching import LAUNCH_SECONDS, MINIMAL, launch, step_metrics
from tests.support.nemo_gym_counter import ROW
from tests.support.paths import ROOT
from tests.support.scripted_engine import call, make_loop
from tests.support.tiny_model import teach, write_model
from verl_pivot.environments.verifiers_rows import verifiers_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LAUNCH_SECONDS + 300)]


def interpreter(package: str, variable: str) -> str:
    python = os.environ.get(variable)
    if python is None:
        pytest.skip(f"no interpreter with {package}: set {variable}")
    return python


def problem(question: str, **columns: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": question}]
    reward = {"style": "rule", "ground_truth": ""}
    return {"data_source": "made_up", "prompt": prompt, "ability": "agent", "reward_model": reward, **columns}


async def two_steps(
    folder: Path, script: Sequence[str], problem: Mapping[str, Any], environment: str
) -> dict[int, dict[str, float]]:
    """Teach a tiny model the script and train it for two steps; returns {step: metrics}.

    Args:
        folder: Folder for all files.
        script: [num_turns] what the policy says.
        problem: Row of the problem; the eight rows of training differ only in their index.
        environment: Override that names the environment.
    """
    played = await make_loop(list(script), environment).run({}, **problem, raw_prompt=problem["prompt"])
    shown = played[-1] if isinstance(played, list) else played
    model = teach(
        write_model(folder / "model"),
        shown.prompt_ids + shown.response_ids,
        [0] * len(shown.prompt_ids) + shown.response_mask,
    )
    rows = folder / "rows.parquet"
    content = [{**problem, "extra_info": {**problem.get("extra_info", {}), "index": index}} for index in range(8)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), rows)
    command = tool_training("tool_rollout", model, rows, Path(), batch_size=2, n=2, num_steps=2)

    output = launch(folder, *(each for each in command if "rollout.tools" not in each), environment)

    assert output.returncode == 0, output.stdout[-5000:]
    return step_metrics(output.stdout)


def assert_paid(metrics: Mapping[int, Mapping[str, float]], reward: float) -> None:
    assert sorted(metrics) == [1, 2]
    for step in (1, 2):
        assert metrics[step]["rollout/masked_rate"] == 0.0
        assert metrics[step]["critic/score/mean"] == pytest.approx(reward)


def tools_file(folder: Path, environment: str) -> str:
    (folder / "tools.yaml").write_text(f"- environment: {environment}\n")
    return f"pivot.rollout.tools={folder / 'tools.yaml'}"


async def test_two_steps_with_a_server_of_openenv(tmp_path: Path) -> None:
    with served(interpreter("openenv-core", "VERL_PIVOT_OPENENV_PYTHON"), "openenv_counter.py", "/health") as url:
        tools = tools_file(tmp_path, f"openenv:{url}")
        metrics = await two_steps(tmp_path, [call("step", by=2), call("step", by=1)], problem("Count to 3."), tools)

    assert_paid(metrics, 3.0)
    assert metrics[2]["rollout/stop_reason/environment_terminated"] == 1.0


async def test_two_steps_with_a_resources_server_of_nemo_gym(tmp_path: Path) -> None:
    with served(interpreter("nemo-gym", "VERL_PIVOT_NEMO_GYM_PYTHON"), "nemo_gym_example.py", "/openapi.json") as url:
        counter = problem("Count to 6.", metadata=json.dumps(ROW))
        tools = tools_file(tmp_path, f"nemo_gym:{url}")
        metrics = await two_steps(tmp_path, [call("increment_counter", count=3), "It is 6."], counter, tools)

    assert_paid(metrics, 1.0)


async def test_two_steps_with_an_environment_of_verifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = interpreter("verifiers 0.4", "VERL_PIVOT_VERIFIERS_V1_PYTHON")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/support"))
    monkeypatch.setitem(MINIMAL, "PYTHONPATH", str(ROOT / "tests/support"))
    arguments = {"agent": {"runtime": {"type": "subprocess"}}, "taskset": {"num": 3}}
    given = list(verifiers_rows(python, "verifiers_sums", arguments))[1]
    settings = "agent: {runtime: {type: subprocess}}, taskset: {num: 3}"
    environment = (
        f"pivot.rollout.environment={{verifiers: verifiers_sums, python: {python}, arguments: {{{settings}}}}}"
    )

    metrics = await two_steps(tmp_path, ["It is 4.", "It is 4."], given, environment)

    assert_paid(metrics, 2.0)
