"""`verl-pivot workflows induce` over a dump: by rule, by a model behind an endpoint, and what is refused."""

import json
import shlex
from pathlib import Path

from tests.support.chat_server import said
from tests.support.fake_engine import Answer, fake_server
from tests.support.launching import cli
from verl_pivot.rollout.workflow_files import read_workflows
from verl_pivot.types import JsonObject


def dump(folder: Path) -> Path:
    """Two rollouts of one prompt, the second of which succeeds in two calls, and one that the system failed."""
    lines = []
    for session, (score, stop) in enumerate([(0.0, "answered"), (1.0, "answered"), (None, "tool_failure")]):
        calls = [
            {"turn": 0, "name": "fill", "arguments": {"element": 4, "text": "Ada"}, "status": "ok"},
            {"turn": 1, "name": "click", "arguments": {"element": 5}, "status": "ok"},
        ]
        record = {
            "prompt_id": "p", "stop_reason": stop, "calls": calls, "turn_tokens": [1, 1], "prompt_tokens": 1,
            "response_tokens": 2, "generate_seconds": 0.0, "tool_seconds": 0.0,
        }  # fmt: skip
        prompt = [{"role": "user", "content": "At https://shop.example find Ada."}] if session == 0 else None
        outcome = {"uid": f"g_{session}_0", "step": 1, "score": score, "kept": score is not None}
        lines.append(json.dumps({**outcome, "prompt": prompt, **record}))
    path = folder / "1.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_by_rule_the_success_is_written_with_its_goal_and_site(tmp_path: Path) -> None:
    out = tmp_path / "my w.jsonl"
    result = cli("workflows", "induce", dump(tmp_path), "--out", out)
    assert result.returncode == 0, result.stderr
    (found,) = read_workflows(out)
    assert (found.goal, found.site) == ("At https://shop.example find Ada.", "shop.example")
    assert [step.tool for step in found.steps] == ["fill", "click"]
    assert shlex.split(result.stdout.splitlines()[-1])[-1] == f"pivot.rollout.workflows.file='{out}'"


def test_rollouts_of_a_copied_dump_are_read_once_and_counted(tmp_path: Path) -> None:
    path = dump(tmp_path)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())

    result = cli("workflows", "induce", path, copy, "--out", tmp_path / "w.jsonl")

    assert result.returncode == 0, result.stderr
    assert "│ left out │     3 │ rollout that was read before, such as from a copy of a dump" in result.stdout


def test_the_latest_steps_stay_and_lines_of_a_notebook_are_one_rollout(tmp_path: Path) -> None:
    """The success of step 1 is the longest; that of step 3 has two lines, the first of which has no record."""
    lines = [json.loads(line) for line in dump(tmp_path).read_text().splitlines()]
    prompt, success = lines[0]["prompt"], lines[1]
    for number, uid in ((2, "h_0_0"), (3, "i_0_1")):
        path = tmp_path / f"{number}.jsonl"
        calls = success["calls"][-1:]
        asked = [{**prompt[0], "content": f"At https://shop.example do {number}."}]
        line = {**success, "uid": uid, "step": number, "prompt": asked, "calls": calls}
        first = {"uid": "i_0_0", "step": 3, "score": 1.0, "kept": True, "prompt": asked}
        path.write_text("".join(json.dumps(each) + "\n" for each in ([first] if number == 3 else []) + [line]))
    out = tmp_path / "w.jsonl"

    dumps = [tmp_path / f"{number}.jsonl" for number in (3, 1, 2)]
    result = cli("workflows", "induce", *dumps, "--max-workflows", "2", "--out", out)

    assert result.returncode == 0, result.stderr
    assert [each.source for each in read_workflows(out)] == ["2:h_0_0", "3:i_0_1"]
    assert "5 rollouts" in result.stdout
    assert "own agent loops" not in result.stdout


def test_a_models_workflows_are_checked_against_their_source(tmp_path: Path) -> None:
    def answer(path: str, body: JsonObject) -> Answer:
        fill = {"note": "look", "tool": "fill", "arguments": {"element": 4, "text": "{name}"}}
        click = {"note": "go", "tool": "click", "arguments": {"element": 5}}
        made_up = {"goal": "Lie", "steps": [click, {**click, "arguments": {"element": 99}}]}
        return said(json.dumps({"workflows": [{"goal": "Find {name}", "steps": [fill, click]}, made_up]}))

    with fake_server(answer) as server:
        asked = ("--by", "model", "--base-url", server.url, "--model", "M")
        result = cli("workflows", "induce", dump(tmp_path), *asked, "--out", tmp_path / "w.jsonl")
    assert result.returncode == 0, result.stderr
    assert [each.goal for each in read_workflows(tmp_path / "w.jsonl")] == ["Find {name}"]
    assert "has a step that its source lacks" in result.stdout
    assert len(server.requests) == 1


def test_what_does_nothing_or_finds_nothing_is_one_sentence(tmp_path: Path) -> None:
    path = dump(tmp_path)
    void = cli("workflows", "induce", path, "--model", "M", "--out", tmp_path / "w.jsonl")
    assert void.returncode != 0
    assert "--model does nothing with --by rule" in void.stderr
    none = cli("workflows", "induce", path, "--min-score", "2", "--out", tmp_path / "w.jsonl")
    assert none.returncode != 0
    assert "no workflow was found" in none.stderr
    assert not (tmp_path / "w.jsonl").exists()
