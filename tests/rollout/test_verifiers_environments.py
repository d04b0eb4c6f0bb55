"""Environments of the package verifiers: rows of their data sets, and rollouts that their process drives.

A stand-in takes the place of the package's `load_environment` and `run_rollout`. The real package runs in the
interpreters that the environment variables VERL_PIVOT_VERIFIERS_PYTHON (0.1.14) and
VERL_PIVOT_VERIFIERS_V1_PYTHON (0.4) name.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pyarrow.parquet
import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from tests.rollout.test_tool_loop import SAMPLING
from tests.support.paths import ROOT
from tests.support.processes import descendants
from tests.support.scripted_engine import call, make_loop
from verl_pivot.cli import app
from verl_pivot.configuration import configs_dir
from verl_pivot.environments.verifiers_process import readable, reported, shown_prompt
from verl_pivot.environments.verifiers_rows import verifiers_rows, verifiers_task
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout import driven_rows, environment_worker
from verl_pivot.rollout.settings import RolloutSettings, parse_settings
from verl_pivot.types import JsonObject

PYTHON = os.environ.get("VERL_PIVOT_VERIFIERS_PYTHON")
needs_verifiers = pytest.mark.skipif(
    PYTHON is None, reason="no interpreter with verifiers: set VERL_PIVOT_VERIFIERS_PYTHON"
)
PYTHON_OF_TASKSETS = os.environ.get("VERL_PIVOT_VERIFIERS_V1_PYTHON")
needs_tasksets = pytest.mark.skipif(
    PYTHON_OF_TASKSETS is None, reason="no interpreter with verifiers 0.4: set VERL_PIVOT_VERIFIERS_V1_PYTHON"
)
TOOLS = str(configs_dir() / "tools/python.yaml")
ENVIRONMENT = '''
import verifiers as vf
from datasets import Dataset


def add(a: int, b: int) -> str:
    """Add two numbers."""
    print("noise")
    return str(a + b)


def right(completion, answer, **_):
    return 2.0 * (answer in completion[-1]["content"])


def load_environment(num=2):
    rows = Dataset.from_list([{"question": f"Add {number} and 3.", "answer": str(number + 3)} for number in range(num)])
    return vf.ToolEnv(dataset=rows, tools=[add], rubric=vf.Rubric(funcs=[right]), max_turns=4)
'''


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/support/stand_ins"))
    driven_rows._worker.cache_clear()


def row_of(example: JsonObject) -> dict[str, Any]:
    """A row as the trainer hands it to the agent loop."""
    return {**example, "raw_prompt": example["prompt"]}


def play_all(script: Sequence[str], rows: Sequence[JsonObject], *overrides: str) -> list[list[TurnRewardOutput]]:
    """Outputs of rollouts of these rows, played at the same time in an event loop of their own."""

    async def play() -> list[list[TurnRewardOutput]]:
        loop = make_loop(script, *overrides)
        return list(await asyncio.gather(*(loop.run(SAMPLING, **row_of(row)) for row in rows)))

    return asyncio.run(play())


def verdict(outputs: list[TurnRewardOutput]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = outputs[-1].extra_fields["verdict"]
    return found


def examples(name: str) -> list[JsonObject]:
    return list(verifiers_rows(sys.executable, name, {}))


def test_rows_hold_what_the_environment_needs_to_play_them() -> None:
    first, second = examples("sums")

    assert first == {
        "data_source": "verifiers:sums",
        "prompt": [{"role": "user", "content": "Add 2 and 3."}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"index": 0, "example_id": 0, "info": '{"level": 0}', "task": "sums"},
    }
    assert second["extra_info"] == {"index": 1, "example_id": 1, "info": '{"level": 1}', "task": "sums"}


def test_the_task_of_a_row_is_what_the_data_set_held() -> None:
    """Groups of environments choose by `task`; an answer may be the number 0."""
    first, _ = examples("zero")

    assert verifiers_task(row_of(first)) == {
        "prompt": [{"role": "user", "content": "Add 2 and 3."}],
        "example_id": 0,
        "answer": "0",
        "info": {"level": 0},
        "task": "zero",
    }


def test_an_environment_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"Could not import 'gone' environment.*where verifiers and the environment"):
        examples("gone")
    with pytest.raises(ConfigError, match="nowhere/python does not start"):
        list(verifiers_rows("nowhere/python", "sums", {}))


def test_the_command_writes_rows_and_says_how_to_train_on_them(tmp_path: Path) -> None:
    out = tmp_path / "sums.parquet"
    words = ["environment-rows", "verifiers:sums", "--out", str(out), "--limit", "1", "--arguments", '{"a": 1}']
    done = CliRunner().invoke(app, words)

    assert done.exit_code == 0, done.output
    assert pyarrow.parquet.read_table(out).to_pylist() == examples("sums")[:1]
    assert f"Wrote {out}: 1 rows." in done.output
    assert "'pivot.rollout.environment={verifiers: sums, arguments: {\"a\": 1}}'" in done.output
    refused = CliRunner().invoke(app, ["environment-rows", "gymnasium:CartPole-v1", "--out", str(out)])
    assert (refused.exit_code, "give verifiers:NAME" in refused.output) == (1, True)


@pytest.mark.parametrize(
    ("report", "readable_report"),
    [
        (
            {"reward": 1, "metrics": {"a": 2, "b": float("nan"), "c": None, "d": "e"}},
            {"reward": 1.0, "metrics": {"a": 2.0}},
        ),
        ({"reward": None}, {"reward": None, "metrics": {}}),
        ({"reward": numpy.float32(0.5)}, {"reward": 0.5, "metrics": {}}),
        ({"reward": float("inf")}, {"error": "the reward is inf, which is not a finite number"}),
        ({"reward": "much"}, {"error": "the reward is 'much', which is not a finite number"}),
        ({"error": "\ud800" + "x" * 2000}, {"error": "?" + "x" * 999}),
    ],
)
def test_one_trajectory_cannot_write_a_line_that_ends_the_process_of_the_others(
    report: dict[str, Any], readable_report: dict[str, Any]
) -> None:
    assert readable(report) == readable_report


def test_rollouts_at_once_share_a_process_that_ends_with_the_event_loop() -> None:
    played = play_all(["It is 5."] * 2, examples("sums"), "pivot.rollout.environment=verifiers:sums")

    assert [verdict(outputs)["score"] for outputs in played] == [1.0, 1.0]
    assert [outputs[-1].extra_fields["scores"] for outputs in played] == [
        {"environment/level": 0},
        {"environment/level": 1},
    ]
    assert descendants("verifiers_process") == []


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("raises", "the environment verifiers:raises failed: ValueError: no more pieces"),
        (
            "dies",
            "the environment verifiers:dies failed: its process ended with exit code 3; its stderr ends with 'noise'",
        ),
        ("hangs", "the environment verifiers:hangs hangs: it sends the policy no request and does not end"),
    ],
)
def test_an_environment_that_fails_gives_no_row_and_says_why(
    kind: str, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = (f"pivot.rollout.environment=verifiers:{kind}", "pivot.rollout.max_wall_seconds=3")

    assert play_all([], examples("sums")[:1], *options) == [[]]
    assert detail in caplog.text
    assert descendants("verifiers_process") == []


def test_a_process_that_hangs_as_a_whole_is_ended_and_the_next_rollout_starts_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that blocks the event loop of the process keeps it from answering that its trajectory is cancelled."""
    monkeypatch.setattr(environment_worker, "CANCEL_SECONDS", 0.5)

    async def play() -> list[list[TurnRewardOutput]]:
        options = ("pivot.rollout.environment=verifiers:blocks", "pivot.rollout.max_wall_seconds=3")
        loop = make_loop(["It is 5."], *options)
        return [await loop.run(SAMPLING, **row_of(row)) for row in examples("sums")]

    blocked, played = asyncio.run(play())

    assert blocked == []
    assert "the environment verifiers:blocks failed: its process hangs, and was ended" in caplog.text
    assert verdict(played)["score"] == 1.0
    assert descendants("verifiers_process") == []


def test_the_end_of_the_process_masks_a_rollout_that_has_reached_a_limit_too() -> None:
    options = ("pivot.rollout.environment=verifiers:dies_late", "pivot.rollout.max_turns=1")

    (outputs,) = play_all(["It is 5."], examples("sums")[:1], *options)

    found = verdict(outputs)
    assert (found["score"], found["reason"]) == (None, "tool_failure")
    assert "its process ended with exit code 3" in found["detail"]


def test_an_environment_has_a_short_and_a_long_name() -> None:
    def settings(environment: object) -> RolloutSettings:
        config = OmegaConf.create({"pivot": {"rollout": {"tools": TOOLS, "environment": environment}}})
        return parse_settings(config)

    assert settings("verifiers:sums") == settings({"verifiers": "sums"})
    for wrong, message in (
        ("sums", "environment must be verifiers:NAME, nemo_gym_agent:URL or {command: "),
        ({"verifiers": "sums", "command": ["a"]}, "command"),
        ({"program": ["a"]}, "command"),
    ):
        with pytest.raises(ConfigError, match=r"pivot\.rollout\.environment") as caught:
            settings(wrong)
        assert message in str(caught.value)


@needs_verifiers
def test_the_real_package_plays_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.py").write_text(ENVIRONMENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert PYTHON is not None
    rows = list(verifiers_rows(PYTHON, "sums", {"num": 3}))
    overrides = ("pivot.rollout.environment.verifiers=sums", f"pivot.rollout.environment.python={PYTHON}")

    (outputs,) = play_all([call("add", a=2, b=3), "It is 5."], rows[2:], *overrides)

    assert len(rows) == 3
    assert (len(outputs), len(outputs[0].turn_ends)) == (1, 2)
    assert verdict(outputs)["score"] == 2.0


def tasksets(**arguments: Any) -> JsonObject:
    return {"agent": {"runtime": {"type": "subprocess"}}, "taskset": arguments}


@pytest.fixture
def task_set(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a task set that the package verifiers can import."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/support"))
    return "verifiers_sums"


@needs_tasksets
def test_task_sets_of_the_real_package_give_rows(task_set: str) -> None:
    assert PYTHON_OF_TASKSETS is not None
    rows = list(verifiers_rows(PYTHON_OF_TASKSETS, task_set, tasksets(num=3)))
    (first,) = verifiers_rows(PYTHON_OF_TASKSETS, task_set, tasksets(endless=True), limit=1)

    assert [row["prompt"][-1]["content"] for row in rows] == ["Add 0 and 3.", "Add 1 and 3.", "Add 2 and 3."]  # type: ignore[index, call-overload]
    assert first["prompt"][0] == {"role": "system", "content": "Be brief."}  # type: ignore[index, call-overload]
    with pytest.raises(ConfigError, match="the task set is infinite: give --limit"):
        list(verifiers_rows(PYTHON_OF_TASKSETS, task_set, tasksets(endless=True)))


@needs_tasksets
async def test_task_sets_of_the_real_package_are_played(task_set: str) -> None:
    assert PYTHON_OF_TASKSETS is not None
    rows = list(verifiers_rows(PYTHON_OF_TASKSETS, task_set, tasksets()))
    environment = {"verifiers": task_set, "python": PYTHON_OF_TASKSETS, "arguments": tasksets()}
    override = f"pivot.rollout.environment={json.dumps(environment)}"
    loops = [make_loop(script, override) for script in (["It is 4.", "It is 4."], ["It is 4.", "No, 5."])]
    loops.append(make_loop(["It is 4."], override, "pivot.rollout.max_turns=1"))

    right, wrong, limited = await asyncio.gather(*(loop.run(SAMPLING, **row_of(rows[1])) for loop in loops))

    assert [len(output.turn_ends) for output in right + wrong] == [2, 2]
    assert [verdict(outputs)["score"] for outputs in (right, wrong)] == [2.0, 0.0]
    assert right[-1].extra_fields["scores"] == {"environment/right": 1.0, "environment/level": 1.0}
    assert (verdict(limited)["score"], verdict(limited)["reason"]) == (0.0, "max_turns")


def test_the_row_of_a_task_shows_its_prompt_as_messages() -> None:
    bare: JsonObject = {"prompt": None, "system_prompt": None, "name": None, "id": None, "idx": 7}
    parts = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "data:"}}]
    prompts = [
        bare,
        {**bare, "name": "chess"},
        {**bare, "prompt": "Play.", "system_prompt": "Be brief."},
        {**bare, "prompt": [{"role": "user", "content": parts}]},
    ]

    assert [shown_prompt(data) for data in prompts] == [
        [{"role": "user", "content": "7"}],
        [{"role": "user", "content": "chess"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Play."}],
        [{"role": "user", "content": "Look."}],
    ]


def test_an_episode_that_failed_or_had_several_agents_is_an_error() -> None:
    def trace(**others: Any) -> SimpleNamespace:
        rewards = {"right": SimpleNamespace(score=1.0), "form": None}
        agent = SimpleNamespace(trainable=others.pop("trainable", True))
        return SimpleNamespace(agent=agent, reward=2.0, rewards=rewards, metrics={"level": 1.0}, errors=[], **others)

    def episode(*traces: SimpleNamespace, ok: bool = True, errors: Sequence[object] = ()) -> SimpleNamespace:
        return SimpleNamespace(traces=traces, ok=ok, errors=errors)

    failure = SimpleNamespace(type="TaskError", message="no more pieces")
    assert reported(episode(trace(), trace(trainable=False))) == {
        "reward": 2.0,
        "metrics": {"right": 1.0, "level": 1.0},
    }
    assert reported(episode(trace(), trace()))["error"].startswith("2 agents played the policy")
    assert reported(episode(ok=False, errors=[failure])) == {"error": "TaskError: no more pieces"}
