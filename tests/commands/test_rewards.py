"""`verl-pivot rewards explain`: what each trajectory was paid, from the line of its dump."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from verl_pivot.cli import app
from verl_pivot.rewards.compose import TermValue, compose
from verl_pivot.rewards.compose_settings import read_composition
from verl_pivot.rewards.reward_terms import terms_text


def dump(folder: Path, **reward_info: str) -> str:
    values = {name: TermValue(value=value) for name, value in (("task", 1.0), ("turns", 4.0), ("format", 0.0))}
    reward = compose(read_composition("course"), values, 10)
    info = {"reward_terms": terms_text(reward), **reward_info}
    line = {"uid": "u_0_0", "score": reward.total, "reason": "composed", "kept": True, "reward_info": info}
    undecided = {"uid": "u_1_0", "score": None, "reason": "judge_failed", "detail": "down\x1b[2J", "kept": False,
                 "reward_info": {"reward_terms": ""}}  # fmt: skip
    path = folder / "1.jsonl"
    path.write_text(f"{json.dumps(line)}\n{json.dumps(undecided)}\n")
    return str(path)


def output(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["rewards", "explain", *words], terminal_width=200)
    return done.exit_code, done.output


def test_each_term_stands_there_with_what_it_was_paid_and_why(tmp_path: Path) -> None:
    criteria = {"criteria": [{"id": "c1", "text": "It cites.", "weight": 1, "points": 2, "born": 3, "spread": 0.5}]}
    code, text = output(dump(tmp_path, criteria=json.dumps(criteria)))
    words = " ".join(text.replace("│", " ").split())

    assert code == 0
    for part in (
        "u_0 reward 0.460",
        "task 1.000 +1.000 1 x 1",
        "turns 0.400 -0.040 -0.1 x 0.4",
        "undecided",
        "written in",
    ):
        assert part in words
    assert "\x1b" not in text


def test_the_json_has_everything(tmp_path: Path) -> None:
    code, text = output(dump(tmp_path), "--json", "--limit", "1")
    rollouts = json.loads(text)["rollouts"]

    assert code == 0
    assert [each["reward"] for each in rollouts] == [pytest.approx(0.46), None]
    assert [term["name"] for term in rollouts[0]["terms"]] == ["task", "turns", "format"]


def test_a_limit_says_how_many_are_not_shown(tmp_path: Path) -> None:
    assert "1 more trajectories: show them with --limit 0" in output(dump(tmp_path), "--limit", "1")[1]


def test_a_dump_without_terms_names_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text(json.dumps({"uid": "u_0_0", "score": 1.0, "kept": True, "reward_info": {}}) + "\n")
    code, text = output(str(path))

    assert code == 1
    assert "launch it with pivot.rewards=NAME" in " ".join(text.split())


def test_terms_that_cannot_be_read_are_refused_with_the_rollout(tmp_path: Path) -> None:
    code, text = output(dump(tmp_path, reward_terms="{"))

    assert code == 1
    assert "rollout u_0 has terms that cannot be read" in " ".join(text.split())
