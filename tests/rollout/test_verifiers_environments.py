"""Environments of verifiers: rows of their data sets, and rollouts that their process drives.

The package is a stand-in at the seam of `load_environment` and `run_rollout`. The real one (0.1.14) runs in the
interpreter that the environment variable VERL_PIVOT_VERIFIERS_PYTHON names.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from tests.rollout.test_tool_loop import SAMPLING
from tests.support.paths import ROOT
from tests.support.scripted_engine import call, make_loop
from verl_pivot.cli import app
from verl_pivot.configuration import configs_dir
from verl_pivot.environments.verifiers_rows import verifiers_rows
from verl_pivot.errors import ConfigError
from verl_pivot.rewards.turn_rewards import TurnRewardOutput
from verl_pivot.rollout import driven_rows
from verl_pivot.rollout.settings import RolloutSettings, parse_settings
from verl_pivot.types import JsonObject

PYTHON = os.environ.get("VERL_PIVOT_VERIFIERS_PYTHON")
needs_verifiers = pytest.mark.skipif(
    PYTHON is None, reason="no interpreter with verifiers: set VERL_PIVOT_VERIFIERS_PYTHON"
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
    """The outputs of rollouts of these rows, all at once, in an event loop that ends with them."""

    async def play() -> list[list[TurnRewardOutput]]:
        loop = make_loop(script, *overrides)
        return list(await asyncio.gather(*(loop.run(SAMPLING, **row_of(row)) for row in rows)))

    return asyncio.run(play())


def verdict(outputs: list[TurnRewardOutput]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = outputs[-1].extra_fields["verdict"]
    return found


def examples(name: str) -> list[JsonObject]:
    return list(verifiers_rows(sys.executable, name, {}))


def processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "verifiers_process" in " ".join(each.cmdline())]


def test_rows_hold_what_the_environment_needs_to_play_them() -> None:
    first, second = examples("sums")

    assert first == {
        "data_source": "verifiers:sums",
        "prompt": [{"role": "user", "content": "Add 2 and 3."}],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"index": 0, "example_id": 0, "info": '{"level": 0}'},
    }
    assert second["extra_info"] == {"index": 1, "example_id": 1, "info": '{"level": 1}'}


def test_an_environment_that_is_not_installed_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"Could not import 'gone' environment.*pip install verifiers==0\.1\.14"):
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


def test_rollouts_at_once_share_a_process_that_ends_with_the_event_loop() -> None:
    played = play_all(["It is 5."] * 2, examples("sums"), "pivot.rollout.environment=verifiers:sums")

    assert [verdict(outputs)["score"] for outputs in played] == [1.0, 1.0]
    assert [outputs[-1].extra_fields["scores"] for outputs in played] == [
        {"environment/level": 0},
        {"environment/level": 1},
    ]
    assert processes() == []


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("raises", "the environment verifiers:raises failed: ValueError: no more pieces"),
        (
            "dies",
            "the environment verifiers:dies failed: its process ended with exit code 3; its stderr ends with 'noise'",
        ),
        ("hangs", "the environment verifiers:hangs hangs: it asks nothing and does not end"),
    ],
)
def test_an_environment_that_fails_gives_no_row_and_says_why(
    kind: str, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = (f"pivot.rollout.environment=verifiers:{kind}", "pivot.rollout.max_wall_seconds=3")

    assert play_all([], examples("sums")[:1], *options) == [[]]
    assert detail in caplog.text
    assert processes() == []


def test_an_environment_has_a_short_and_a_long_name() -> None:
    def settings(environment: object) -> RolloutSettings:
        config = OmegaConf.create({"pivot": {"rollout": {"tools": TOOLS, "environment": environment}}})
        return parse_settings(config)

    assert settings("verifiers:sums") == settings({"verifiers": "sums"})
    for wrong, message in (
        ("sums", "environment must be verifiers:NAME or {command: "),
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
