"""A launch whose foreign sandbox pool lacks something that it needs is refused in one sentence before Ray starts."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.factories import make_trajectory
from verl_pivot.cli import app
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.errors import ConfigError
from verl_pivot.launch_checks.reward_functions import check_reward_function
from verl_pivot.launch_checks.sandbox_pool import TOOL_NEEDS, VERIFIER_NEEDS, check_pool
from verl_pivot.tools.registry import known_tools
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.verifiers.registry import known_verifiers

POOL = "VERL_PIVOT_SANDBOX_POOL"
FUSION = "{protocol: sandbox_fusion, urls: [http://pool:8080]}"
JUDGE = "{protocol: code_judge, urls: [http://pool:8088]}"
WITH_TESTS = json.dumps({"tests": [{"stdin": "", "stdout": "1"}]})
WITH_ASSERTS = json.dumps({"asserts": ["assert f(1) == 1"]})


def tools_file(folder: Path, *names: str) -> str:
    path = folder / f"{len(names)}-{names[-1]}.yaml"
    path.write_text("".join(f"- tool: {name}\n" for name in names))
    return str(path)


def test_tools_and_verifiers_with_needs_exist() -> None:
    assert set(TOOL_NEEDS) <= set(known_tools())
    assert set(VERIFIER_NEEDS) <= set(known_verifiers())


def test_without_a_pool_everything_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POOL, raising=False)
    check_pool(tools=known_tools(), verifiers=[("sql", "{}")])


def test_tools_with_sessions_are_refused_on_a_pool_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POOL, FUSION)
    check_pool(tools=load_toolset(tools_file(tmp_path, "python_code_with_standard_io", "sql")).built_in)

    stateful = load_toolset(tools_file(tmp_path, "python_code_with_standard_io", "jupyter_code"))
    with pytest.raises(ConfigError, match="tool 'jupyter_code' needs sessions, which a pool of sandbox_fusion does"):
        check_pool(tools=stateful.built_in)


@pytest.mark.parametrize(
    ("name", "options", "refused"),
    [
        ("tool_call", "{}", None),
        ("code", WITH_TESTS, None),
        ("code", WITH_ASSERTS, "code"),
        ("sql", "{}", "sql"),
        ("weighted", json.dumps({"verifiers": [{"name": "tool_call"}, {"name": "math"}]}), "math"),
        ("weighted", json.dumps({"verifiers": "math"}), None),
    ],
)
def test_verifiers_with_files_are_refused_on_code_judge_and_not_on_sandbox_fusion(
    name: str, options: str, refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POOL, FUSION)
    check_pool(verifiers=[(name, options)])

    monkeypatch.setenv(POOL, JUDGE)
    if refused is None:
        check_pool(verifiers=[(name, options)])
    else:
        with pytest.raises(ConfigError, match=f"verifier '{refused}' needs files, which a pool of code_judge does not"):
            check_pool(verifiers=[(name, options)])


def test_play_stops_where_the_pool_lacks_what_its_tools_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POOL, JUDGE)
    ended = CliRunner().invoke(app, ["play", tools_file(tmp_path, "sql"), "--human", "--prompt", "How many?"])

    assert ended.exit_code != 0
    assert "tool 'sql' needs files, which a pool of code_judge does not have" in ended.output


def test_a_profile_stops_where_the_pool_lacks_what_a_verifier_needs_before_it_looks_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make_trajectory(id="a"), make_trajectory(id="b", verifier="sql")]
    file = tmp_path / "trajectories.jsonl"
    file.write_text("".join(json.dumps(trajectory_as_dict(row)) + "\n" for row in rows))
    monkeypatch.setenv(POOL, JUDGE)

    ended = CliRunner().invoke(
        app, ["profile", str(file), "--model", str(tmp_path / "none"), "--out", str(tmp_path / "profile.jsonl")]
    )

    assert ended.exit_code != 0
    assert "verifier 'sql' needs files, which a pool of code_judge does not have" in ended.output
    assert not (tmp_path / "profile.jsonl").exists()


def test_a_reward_for_mathematics_is_refused_on_a_pool_that_cannot_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(POOL, raising=False)
    check_reward_function("pkg://verl_pivot.rewards.math_rewards")

    monkeypatch.setenv(POOL, JUDGE)
    for path in (None, "mine.py", "pkg://verl_pivot.rewards.search_rewards"):
        check_reward_function(path)
    with pytest.raises(ConfigError, match="verifier 'math' needs files, which a pool of code_judge does not have"):
        check_reward_function("pkg://verl_pivot.rewards.math_rewards")


def test_a_reward_for_mathematics_without_its_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"the Python package math_verify is not installed: pip install"):
        check_reward_function("pkg://verl_pivot.rewards.math_rewards")
