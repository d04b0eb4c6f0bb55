"""`verl-pivot play`: a scripted endpoint or a person plays an environment, and the conversations import again."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from tests.support.chat_server import chat_server, said
from tests.support.factories import FIND_ORDER
from tests.support.fake_engine import Answer
from tests.support.paths import ROOT
from verl_pivot.cli import app
from verl_pivot.data.actions import read_turn
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import turns
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.playing.endpoint_player import read_answer
from verl_pivot.types import JsonObject, Malformed, ToolCall

SHOP = """
from verl_pivot.tools.contract import Environment, ToolError, tool
from verl_pivot.types import Verdict

class Shop(Environment):
    def __init__(self, metadata):
        self.stock = metadata.get("stock", 3)

    @tool
    def order(self, amount: int = 1) -> str:
        '''Order packs of tea.'''
        if amount > self.stock:
            raise ToolError("not so many")
        self.stock -= amount
        return f"{self.stock} left"

    @tool
    def crash(self) -> str:
        '''Break.'''
        raise ConnectionError("the database is down")

    @tool
    def shout(self) -> str:
        '''Say much.'''
        return "\\x1b[2J" + "x" * 100

    async def score(self, answer):
        if answer is None:
            return Verdict.refuse("no_answer")
        return Verdict.accept() if self.stock == 1 else Verdict.refuse("wrong_stock", f"{self.stock} left")
"""
ORDERED = (said(None, ("order", {"amount": 2})), said("Done."))


@pytest.fixture
def shop(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SHOP)
    return f"{tmp_path}/shop.py:Shop"


def play(*arguments: str | Path, stdin: str = "") -> Result:
    """Run the command in this process, which is faster."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["play", *map(str, arguments)], input=stdin)


def refusal(*arguments: str | Path, stdin: str = "") -> str:
    done = play(*arguments, stdin=stdin)
    assert done.exit_code == 1, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: "), done.stderr
    return last.removeprefix("error: ")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_rows(path: Path, num: int, **columns: Any) -> Path:
    rows = [{"prompt": [{"role": "user", "content": f"Order {number}."}], **columns} for number in range(num)]
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_model_plays_an_environment_and_the_conversation_is_shown(shop: str) -> None:
    with chat_server(ORDERED) as server:
        done = play(shop, "--openai", server.url, "--prompt", "Two packs of tea.")

    assert done.exit_code == 0, done.output
    shown = re.sub(r"seconds of the player: [\d.]+, of tools: [\d.]+", "SECONDS", done.stdout)
    assert shown.splitlines() == [
        "--- prompt-0",
        "user: Two packs of tea.",
        'assistant: order({"amount": 2})',
        "tool order: 1 left",
        "assistant: Done.",
        "Reward 1 (environment: accepted)",
        "Ended: answered; turns: 2, calls: 1, of which the policy got wrong: 0; tokens of prompt: 10, of response: 25; "
        "SECONDS",
    ]


def test_the_endpoint_reads_the_conversation_in_openais_form(shop: str) -> None:
    with chat_server(ORDERED) as server:
        play(
            shop,
            "--openai",
            server.url,
            "--prompt",
            "Tea.",
            "--seed",
            "7",
            "--extra-body",
            '{"top_k": -1, "top_p": null}',
        )

    first, second = server.requests
    assert {key: first[key] for key in first if key not in ("messages", "tools")} == {
        "model": "small", "temperature": 1.0, "seed": 7, "max_tokens": 8192, "top_k": -1,
    }  # fmt: skip
    assert [tool["function"]["name"] for tool in first["tools"]] == ["order", "crash", "shout"]  # type: ignore[union-attr, call-overload, index]
    called = {"id": "id-0", "type": "function", "function": {"name": "order", "arguments": '{"amount": 2}'}}
    assert second["messages"] == [
        {"role": "user", "content": "Tea."},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": "1 left", "tool_call_id": "id-0"},
    ]
    assert second["max_tokens"] == 8192 - 5 - 2  # 5 tokens of the turn, and about two of the observation


@pytest.mark.parametrize("name", ["problems.parquet", "problems.jsonl"])
def test_conversations_import_again_as_they_stand(shop: str, tmp_path: Path, name: str) -> None:
    rows = write_rows(tmp_path / name, 2, metadata='{"stock": 3}')
    out, imported = tmp_path / "played.jsonl", tmp_path / "trajectories.jsonl"

    with chat_server([*ORDERED, said("I cannot.")]) as server:
        done = play(shop, "--openai", server.url, "--rows", rows, "--out", out, "--concurrency", "1")

    assert done.exit_code == 0, done.output
    assert [(row["id"], row["reward"], row["passed"]) for row in lines(out)] == [
        ("problems-1-0", 1.0, True),
        ("problems-2-0", 0.0, False),
    ]
    assert lines(out)[1]["verdict"] == {
        "score": 0.0, "by": "environment", "reason": "wrong_stock", "detail": "3 left",
    }  # fmt: skip
    read = CliRunner().invoke(app, ["import", str(out), "--out", str(imported)])
    assert read.exit_code == 0, read.output
    assert "read as played" in read.output
    assert "ignored" not in read.output
    (trajectory,) = read_trajectories(imported)
    assert [message.role.value for message in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert trajectory.passed is True
    assert len(trajectory.tools) == 3
    provenance: Any = trajectory.metadata["verl_pivot"]
    assert (provenance["reward"], provenance["split_by"]) == (1.0, "problems-1")


def test_a_turn_that_cannot_be_read_is_not_the_experts_and_a_row_of_such_turns_alone_is_refused(
    shop: str, tmp_path: Path
) -> None:
    out, imported = tmp_path / "played.jsonl", tmp_path / "trajectories.jsonl"
    rows = write_rows(tmp_path / "rows.jsonl", 2)
    unreadable = said("<tool_call>\n{")

    with chat_server([unreadable, *ORDERED, said("So", end="length", tokens=4)]) as server:
        done = play(shop, "--openai", server.url, "--rows", rows, "--out", out, "--concurrency", "1")
    read = CliRunner().invoke(app, ["import", str(out), "--outcome", "all", "--out", str(imported)])

    assert (done.exit_code, read.exit_code) == (0, 0), done.output + read.output
    assert [row["expert_turns"] for row in lines(out)] == [[1, 2], []]
    (trajectory,) = read_trajectories(imported)
    assert [turn.index for turn in turns(trajectory)] == [1, 2]
    assert "no_action" in read.output


def test_rows_are_played_at_once_and_each_sample_has_a_seed(shop: str, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "rows.jsonl", 6), tmp_path / "played.jsonl"

    with chat_server([said("No.")]) as server:
        done = play(
            shop, "--openai", server.url, "--rows", rows, "--num", "4", "--samples", "2", "--out", out, "--quiet"
        )

    assert done.exit_code == 0, done.output
    assert sorted(row["id"] for row in lines(out)) == [f"rows-{row}-{k}" for row in (1, 2, 3, 4) for k in (0, 1)]
    assert sorted(str(request["seed"]) for request in server.requests) == ["0"] * 4 + ["1"] * 4
    assert "user:" not in done.stdout
    assert re.search(r"with a reward\s+│\s+8 │ mean 0", done.stdout)
    assert re.search(r"wrong_stock\s+│\s+8 ", done.stdout)


@pytest.mark.parametrize(
    ("answer", "kind", "observation"),
    [
        (said(None, ("order", '{"amount": ')), "malformed_call", "arguments of order: not JSON"),
        (said(None, ("order", "[1]")), "malformed_call", "arguments of order must be a JSON object, got a list"),
        (said('<tool_call>\n{"name": "order"}\n</tool_call>'), "malformed_call", 'a call needs "name" (text)'),
        (said("<tool_call>\n{"), "malformed_call", "<tool_call> without its partner"),
        (
            said('<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>'),
            "malformed_call",
            "a tool call needs a name",
        ),
        (
            said('<tool_call>\n{"name": "order\\ud83d", "arguments": {}}\n</tool_call>'),
            "malformed_call",
            "half of a surrogate pair",
        ),
        (said(None, ("buy", {})), "unknown_tool", "there is no tool 'buy'; the tools are order, crash, shout"),
        (said(None, ("order", {"amount": "two"})), "invalid_argument", "$.amount: 'two' is not of type 'integer'"),
        (said(None, ("order", '{"amount": "\\ud800"}')), "invalid_argument", "no JSON form"),
        (said(None, ("order", {"amount": 9})), "refused", "not so many"),
    ],
)
def test_the_model_reads_its_mistake_and_goes_on(
    shop: str, tmp_path: Path, answer: Answer, kind: str, observation: str
) -> None:
    out = tmp_path / "played.jsonl"

    with chat_server([answer, *ORDERED]) as server:
        done = play(shop, "--openai", server.url, "--prompt", "Two.", "--out", out)

    assert done.exit_code == 0, done.output
    (row,) = lines(out)
    assert row["reward"] == 1.0
    assert [call["error_kind"] for call in row["rollout"]["calls"]] == [kind, None]
    read = row["messages"][2]
    assert observation in read["content"]
    assert read["role"] == ("user" if kind == "malformed_call" else "tool")
    assert row["expert_turns"] == ([1, 2] if kind == "malformed_call" else "all")
    assert server.requests[1]["messages"][2]["content"] == read["content"]  # type: ignore[index, call-overload]


def test_calls_that_the_endpoint_leaves_in_the_text_are_read(shop: str, tmp_path: Path) -> None:
    text = '<think>Two.</think>I order.\n<tool_call>\n{"name": "order", "arguments": {"amount": 2}}\n</tool_call>'
    out = tmp_path / "played.jsonl"

    with chat_server([said(text), said("Done.", reasoning_content="It is done.")]) as server:
        play(shop, "--openai", server.url, "--prompt", "Two.", "--out", out)

    _, first, result, last = lines(out)[0]["messages"]
    assert (first["content"], first["reasoning_content"]) == ("I order.", "Two.")
    assert first["tool_calls"][0]["function"] == {"name": "order", "arguments": {"amount": 2}}
    assert first["tool_calls"][0]["id"] == result["tool_call_id"] == "call_0_0"
    assert last == {"role": "assistant", "content": "Done.", "reasoning_content": "It is done."}
    assert "reasoning_content" not in json.dumps(server.requests)


@pytest.mark.parametrize(
    ("answers", "options", "stop_reason", "num_turns"),
    [
        ([said(None, ("order", {"amount": 0}))], ["--max-turns", "3"], "max_turns", 3),
        ([said("So", end="length", tokens=4)], ["--max-turn-tokens", "4"], "max_turn_tokens", 1),
        ([said("So", end="length", tokens=4)], [], "max_response_tokens", 1),
        ([said(None, ("order", {"amount": 0}))], ["--max-response-tokens", "27"], "max_response_tokens", 2),
        ([said(None, ("order", {"amount": 0}))], ["--max-wall-seconds", "1e-9"], "max_wall_seconds", 0),
    ],
)
def test_limits_are_those_of_training(
    shop: str, tmp_path: Path, answers: list[Answer], options: list[str], stop_reason: str, num_turns: int
) -> None:
    out = tmp_path / "played.jsonl"

    with chat_server(answers) as server:
        done = play(shop, "--openai", server.url, "--prompt", "Two.", "--out", out, *options)

    assert done.exit_code == 0, done.output
    (row,) = lines(out)
    assert (row["rollout"]["stop_reason"], len(row["rollout"]["turn_tokens"])) == (stop_reason, num_turns)
    assert row["verdict"]["reason"] == "no_answer"
    assert row["expert_turns"] == ([] if "So" in json.dumps(row["messages"]) else "all")


def test_calls_of_a_turn_do_not_begin_after_the_wall_clock_ran_out(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("- function: tests.support.tool_functions:sleep\n")
    out = tmp_path / "played.jsonl"

    with chat_server([said(None, ("sleep", {"seconds": 2.5}), ("sleep", {"seconds": 2.5}))]) as server:
        tools = tmp_path / "tools.yaml"
        play(tools, "--openai", server.url, "--prompt", "Two.", "--out", out, "--max-wall-seconds", "2")

    (row,) = lines(out)
    assert row["rollout"]["stop_reason"] == "max_wall_seconds"
    assert [call["status"] for call in row["rollout"]["calls"]] == ["ok"]
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]


def test_calls_beyond_the_limit_of_a_turn_are_not_run(shop: str, tmp_path: Path) -> None:
    out = tmp_path / "played.jsonl"

    with chat_server([said(None, ("order", {}), ("order", {}), ("order", {})), said("Done.")]) as server:
        play(shop, "--openai", server.url, "--prompt", "Two.", "--out", out, "--max-calls-per-turn", "2")

    (row,) = lines(out)
    assert [call["error_kind"] for call in row["rollout"]["calls"]] == [None, None, "too_many_calls"]
    assert row["reward"] == 1.0


def test_a_failure_of_a_tool_masks_the_conversation_and_the_import_leaves_it_out(shop: str, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "rows.jsonl", 2), tmp_path / "played.jsonl"

    with chat_server([said(None, ("crash", {})), *ORDERED]) as server:
        done = play(shop, "--openai", server.url, "--rows", rows, "--out", out, "--concurrency", "1")

    assert done.exit_code == 0, done.output
    assert (
        "Masked, so that training would not use it: tool_failure, environment Shop.crash raised ConnectionError: the "
    ) in done.stdout
    masked, _ = lines(out)
    assert (masked["reward"], masked["passed"], masked["rollout"]["is_masked"]) == (None, False, True)
    assert [message["role"] for message in masked["messages"]] == ["user", "assistant"]
    imported = tmp_path / "trajectories.jsonl"
    CliRunner().invoke(app, ["import", str(out), "--out", str(imported)])
    assert [trajectory.id for trajectory in read_trajectories(imported)] == ["rows-2-0"]


def test_a_command_that_only_gets_masked_conversations_fails(shop: str) -> None:
    with chat_server([said(None, ("crash", {}))]) as server:
        said_error = refusal(shop, "--openai", server.url, "--prompt", "Two.")

    assert said_error.startswith(
        "every conversation was masked; the last failure: environment Shop.crash raised Connection"
    )


@pytest.mark.parametrize("empty", [said("", tokens=0), said("So", end="content_filter")])
def test_empty_answers_are_asked_again_three_times(shop: str, tmp_path: Path, empty: Answer) -> None:
    out = tmp_path / "played.jsonl"

    with chat_server([empty, empty, said("No."), empty]) as server:
        rows = write_rows(tmp_path / "rows.jsonl", 2)
        play(shop, "--openai", server.url, "--rows", rows, "--out", out, "--concurrency", "1")

    answered, failed = lines(out)
    assert (answered["rollout"]["stop_reason"], answered["rollout"]["num_empty_answers"]) == ("answered", 2)
    assert (failed["rollout"]["stop_reason"], failed["rollout"]["num_empty_answers"]) == ("engine_failure", 3)
    assert failed["verdict"]["detail"] == "the endpoint returned no token 3 times in a row"


def test_a_refused_request_masks_its_conversation_if_the_endpoint_answers_others(shop: str, tmp_path: Path) -> None:
    too_long = Answer(body={"error": {"message": "maximum context length is 4096"}}, status=400)
    rows, out = write_rows(tmp_path / "rows.jsonl", 4), tmp_path / "played.jsonl"

    with chat_server([too_long, said("Yes."), said("No."), too_long, said("Yes."), said("No.")]) as server:
        done = play(shop, "--openai", server.url, "--rows", rows, "--out", out, "--concurrency", "1")

    assert done.exit_code == 0, done.output
    stop_reasons = [row["rollout"]["stop_reason"] for row in lines(out)]
    assert stop_reasons == ["engine_failure", "answered", "engine_failure", "answered"]
    assert "maximum context length is 4096" in lines(out)[0]["verdict"]["detail"]
    with chat_server([too_long]) as server:
        said_error = refusal(shop, "--openai", server.url, "--rows", rows)
    assert "maximum context length is 4096" in said_error
    assert "lower --max-response-tokens" in said_error


@pytest.mark.parametrize("failure", [said("", end="abort"), Answer(body="out of memory", status=500)])
def test_a_request_at_which_the_endpoint_fails_each_time_masks_its_conversation(
    shop: str, tmp_path: Path, failure: Answer
) -> None:
    rows, out = write_rows(tmp_path / "rows.jsonl", 3), tmp_path / "played.jsonl"

    with chat_server([said("No."), failure, failure, said("Yes."), said("No.")]) as server:
        arguments = ["--openai", server.url, "--rows", rows, "--out", out, "--concurrency", "1", "--attempts", "2"]
        done = play(shop, *arguments)

    assert done.exit_code == 0, done.output
    assert [row["rollout"]["stop_reason"] for row in lines(out)] == ["answered", "engine_failure", "answered"]
    with chat_server([failure]) as server:
        said_error = refusal(shop, "--openai", server.url, "--rows", rows, "--attempts", "1")
    assert said_error.startswith(f"{server.url}/v1 kept a")


def test_an_endpoint_that_dies_stops_the_command_and_keeps_what_had_ended(shop: str, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "rows.jsonl", 9), tmp_path / "played.jsonl"

    with chat_server([said("No."), said("No."), Answer(body="", status=0)]) as server:
        arguments = [shop, "--openai", server.url, "--rows", rows, "--out", out]
        done = play(*arguments, "--attempts", "1", "--concurrency", "1")

    assert done.exit_code == 1
    kept, error = done.stderr.splitlines()[-2:]
    assert kept == f"Stopped by an error; 2 conversations that had ended are in {out}."
    assert error.startswith(f"error: {server.url}/v1 cannot be reached")
    assert len(lines(out)) == 2


def test_control_characters_of_a_tool_reach_no_terminal_and_long_observations_are_cut(
    shop: str, tmp_path: Path
) -> None:
    out = tmp_path / "played.jsonl"

    with chat_server([said(None, ("shout", {})), said("Done.")]) as server:
        done = play(shop, "--openai", server.url, "--prompt", "Two.", "--out", out, "--max-observation-tokens", "16")

    assert "\x1b" not in done.stdout
    assert "\\x1b[2Jxxx" in done.stdout
    (row,) = lines(out)
    read = row["messages"][2]["content"]
    assert len(read) <= 64
    assert "characters left out" in read
    assert (row["rollout"]["calls"][0]["truncated"], row["rollout"]["calls"][0]["num_tokens"]) == (True, 16)


def test_pivots_are_scored_by_their_verifier_at_the_first_turn(tmp_path: Path, shop: str) -> None:
    expert = {"role": "assistant", "tool_calls": [{"function": {"name": "order", "arguments": {"amount": 2}}}]}
    row = {
        "prompt": json.dumps([{"role": "user", "content": "Two."}]), "expert": json.dumps(expert), "tools": "[]",
        "verifier": "tool_call", "verifier_options": "{}", "metadata": "{}", "trajectory_id": "a", "turn_index": 0,
    }  # fmt: skip
    (tmp_path / "pivots.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "tools.yaml").write_text("- function: tests.support.tool_functions:add\n  name: order\n")
    out = tmp_path / "played.jsonl"

    for amount, reward in ((2, 1.0), (3, 0.0)):
        out.unlink(missing_ok=True)
        with chat_server([said(None, ("order", {"amount": amount})), said("Done.")]) as server:
            play(tmp_path / "tools.yaml", "--openai", server.url, "--rows", tmp_path / "pivots.jsonl", "--out", out)
        assert (lines(out)[0]["reward"], lines(out)[0]["verdict"]["by"]) == (reward, "tool_call")


def test_a_reward_function_of_verl_scores_what_no_environment_decides(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("- function: tests.support.tool_functions:add\n")
    (tmp_path / "reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
        '    expected = \'<tool_call>\\n{"name": "add", "arguments": {"a": 2}}\\n</tool_call>\\n\'\n'
        "    assert solution_str == expected + 'tool\\n3\\nassistant\\nIt is 3.', solution_str\n"
        "    return {'score': float(ground_truth == '3') + extra_info['bonus'], 'source': data_source}\n"
        "def broken(**columns):\n"
        "    raise KeyError('x')\n"
        "def text(**columns):\n"
        "    return 'good'\n"
    )
    model = {"style": "rule", "ground_truth": "3"}
    rows = write_rows(tmp_path / "rows.jsonl", 1, data_source="sums", reward_model=model, extra_info={"bonus": 0.5})
    arguments = [tmp_path / "tools.yaml", "--rows", rows]
    answers = [said(None, ("add", {"a": 2})), said("It is 3.")]

    with chat_server(answers) as server:
        plain = play(*arguments, "--openai", server.url)
    with chat_server(answers) as server:
        scored = play(*arguments, "--openai", server.url, "--reward-function", f"{tmp_path}/reward.py:compute_score")

    assert (
        "No reward (nobody: not_scored, no environment decides the reward; in training verl's reward for data_source "
        in plain.stdout
    )
    assert "Reward 1.5 (reward_function: compute_score)" in scored.stdout
    place = f"{tmp_path}/reward.py, line 6, in broken"
    for name, what in (("broken", f"raised KeyError: 'x' ({place})"), ("text", "returned 'good'; return a finite")):
        with chat_server(answers) as server:
            said_error = refusal(
                *arguments, "--openai", server.url, "--reward-function", f"{tmp_path}/reward.py:{name}"
            )
        assert said_error.startswith(f"{rows}, line 1: reward function {name} {what}")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("extra_info", "difficult", "extra_info: not JSON"),
        ("reward_model", "3", "reward_model must be a JSON object, got a number"),
        ("reward_model", ["3"], "reward_model must be a JSON object, got a list"),
    ],
)
def test_a_column_that_a_reward_function_cannot_take_is_named_before_anything_is_played(
    shop: str, tmp_path: Path, column: str, value: object, message: str
) -> None:
    (tmp_path / "reward.py").write_text("def zero(**columns):\n    return 0\n")
    rows = write_rows(tmp_path / "rows.jsonl", 1, **{column: value})
    arguments = (shop, "--rows", rows, "--out", tmp_path / "played.jsonl")

    with chat_server(ORDERED) as server:
        refused = refusal(*arguments, "--openai", server.url, "--reward-function", f"{tmp_path}/reward.py:zero")
        num_asked = len(server.requests)
        without = play(*arguments, "--openai", server.url)

    assert refused.startswith(f"{rows}, line 1: {message}")
    assert num_asked == 0
    assert without.exit_code == 0, without.output


def test_a_tool_may_end_the_conversation(tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text(
        "from verl_pivot.data.rollout_records import StopReason\n"
        "from verl_pivot.tools.contract import Observation\n\n"
        "def leave() -> Observation:\n    '''Leave.'''\n"
        "    return Observation('Bye.', end=StopReason.ENDED_BY_TOOL)\n"
    )
    (tmp_path / "tools.yaml").write_text(f"- function: {tmp_path}/door.py:leave\n")

    with chat_server([said(None, ("leave", {}))]) as server:
        done = play(tmp_path / "tools.yaml", "--openai", server.url, "--prompt", "Leave.")

    assert done.exit_code == 0, done.output
    assert "tool leave: Bye." in done.stdout
    assert "Ended: ended_by_tool; turns: 1, calls: 1, of which the policy got wrong: 0" in done.stdout


FAULTY = """
from verl_pivot.tools.contract import Environment, tool

class Made(Environment):
    def __init__(self, metadata):
        metadata["nothing"]

class Scored(Environment):
    async def score(self, answer):
        return "good"

class Closed(Environment):
    async def score(self, answer):
        return 1.0

    async def close(self):
        raise RuntimeError("stuck")

class Called(Environment):
    @tool
    def order(self, amount: int = 1) -> str:
        '''Order.'''
        return {}["tea"]

class Stuck(Environment):
    async def score(self, answer):
        return 1.0

    async def close(self):
        raise ConnectionResetError("reset by peer")
"""


@pytest.mark.parametrize(
    ("name", "kept", "sentence"),
    [
        ("Made", 0, "--prompt: environment Made raised KeyError: 'nothing' ({file}, line 6, in __init__)"),
        ("Scored", 1, "--prompt: environment Scored.score returned 'good'"),
        ("Closed", 1, "--prompt: environment Closed.close raised RuntimeError: stuck ({file}, line 17, in close)"),
        ("Called", 1, "--prompt: environment Called.order raised KeyError: 'tea' ({file}, line 23, in order)"),
    ],
)
def test_a_fault_of_an_environment_names_class_method_and_line_and_keeps_the_conversation(
    tmp_path: Path, name: str, kept: int, sentence: str
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    out = tmp_path / "played.jsonl"

    with chat_server(ORDERED) as server:
        said_error = refusal(f"{tmp_path}/faulty.py:{name}", "--openai", server.url, "--prompt", "Two.", "--out", out)

    assert said_error.startswith(sentence.format(file=tmp_path / "faulty.py"))
    assert (len(lines(out)) if out.exists() else 0) == kept


def test_a_fault_of_an_environment_masks_its_conversation_once_another_has_worked(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    rows, out = write_rows(tmp_path / "rows.jsonl", 3), tmp_path / "played.jsonl"

    with chat_server([said("No."), ORDERED[0], said("No.")]) as server:
        arguments = ["--openai", server.url, "--rows", rows, "--out", out, "--concurrency", "1"]
        done = play(f"{tmp_path}/faulty.py:Called", *arguments)

    assert done.exit_code == 0, done.output
    assert [(row["verdict"]["reason"], row["passed"]) for row in lines(out)] == [
        ("not_scored", None), ("user_code_failed", False), ("not_scored", None),
    ]  # fmt: skip


def test_a_system_that_fails_while_an_environment_is_closed_masks_its_conversation(tmp_path: Path) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    out = tmp_path / "played.jsonl"

    with chat_server([said("No.")]) as server:
        said_error = refusal(f"{tmp_path}/faulty.py:Stuck", "--openai", server.url, "--prompt", "Two.", "--out", out)

    detail = "environment Stuck.close raised ConnectionResetError: reset by peer"
    assert said_error.startswith(f"every conversation was masked; the last failure: {detail}")
    (row,) = lines(out)
    assert row["passed"] is False
    assert row["verdict"] == {"score": None, "by": "nobody", "reason": "system_failure", "detail": detail}


def answered(**message: Any) -> Answer:
    return Answer(body={"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "stop"}]})


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (Answer(body=b"<html>"), "answered with something that is not JSON"),
        (Answer(body={"choices": []}), "answered in an unexpected format"),
        (Answer(body={"error": "?"}), "answered in an unexpected format"),
        (
            answered(content=5),
            "the endpoint's answer is not a chat message (content must be text, got a number)",
        ),
        (answered(content=[{"type": "image"}]), "the endpoint's answer is not a chat message"),
        (answered(tool_calls="order"), "the endpoint's answer is not a chat message (tool_calls must be a JSON"),
        (answered(tool_calls=[{"function": None}]), "the endpoint's answer is not a chat message (tool_call.f"),
        (Answer(body={"error": "no key"}, status=401), "refused the key (status 401)"),
        (Answer(body={"error": "unknown key seed"}, status=422), "set it to null in --extra-body"),
        (Answer(body="busy", status=503), "kept answering with status 503"),
    ],
)
def test_an_endpoint_that_answers_something_else_stops_the_command(shop: str, answer: Answer, sentence: str) -> None:
    with chat_server([answer]) as server:
        said_error = refusal(shop, "--openai", server.url, "--prompt", "Two.", "--attempts", "1")

    assert sentence in said_error


def test_endpoints_may_give_arguments_as_an_object_or_leave_them_out_and_content_in_parts(
    shop: str, tmp_path: Path
) -> None:
    out = tmp_path / "played.jsonl"
    calls = [{"function": {"name": "order", "arguments": {"amount": 1}}}, {"id": 3, "function": {"name": "order"}}]

    with chat_server([answered(tool_calls=calls), answered(content=[{"type": "text", "text": "Done."}])]) as server:
        play(shop, "--openai", server.url, "--prompt", "Two.", "--out", out)

    (row,) = lines(out)
    assert row["reward"] == 1.0
    assert [call["id"] for call in row["messages"][1]["tool_calls"]] == ["call_0_0", "call_0_1"]
    assert [message.get("tool_call_id") for message in row["messages"][2:4]] == ["call_0_0", "call_0_1"]
    assert row["messages"][4]["content"] == "Done."


ORDER_CALL: JsonObject = {"function": {"name": "order", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("text", "is_action"),
    [
        ("Observation: the order was paid.", False),
        ("<tool_result>paid</tool_result>", False),
        ("...", True),
        ("---", True),
        ("I order now.", True),
    ],
)
def test_text_before_calls_that_the_server_read_is_judged_as_before_calls_in_training(
    text: str, is_action: bool
) -> None:
    message: JsonObject = {"role": "assistant", "content": text, "tool_calls": [ORDER_CALL]}

    turn = read_answer(ChatAnswer(message=message, finish_reason="stop", num_prompt_tokens=1, num_completion_tokens=1))
    trained = read_turn(f'{text}\n<tool_call>\n{{"name": "order", "arguments": {{}}}}\n</tool_call>')

    assert turn.calls == trained.calls
    assert isinstance(turn.calls[0], ToolCall if is_action else Malformed)


def test_mistakes_of_the_command_are_one_sentence(shop: str, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 1)
    (tmp_path / "promptless.jsonl").write_text('{"question": "Two."}\n')
    (tmp_path / "wrong.yaml").write_text("- function: nowhere:add\n")
    there = tmp_path / "there.jsonl"
    there.write_text("kept\n")
    closed = "http://127.0.0.1:9"

    with chat_server(ORDERED, models=("a", "b")) as server:
        at = ("--openai", server.url)
        assert refusal(shop, "--prompt", "x") == "give either --openai URL, for a model, or --human, to play yourself"
        assert refusal(shop, *at, "--human").startswith("give either --openai URL")
        assert refusal(shop, *at, "--prompt", "x", "--rows", rows).startswith("--rows and --prompt were both given")
        assert refusal(shop, *at).startswith("there is no first message; give --prompt TEXT, or --rows")
        assert (
            refusal(shop, *at, "--prompt", "x") == f"{server.url} serves a, b, but none of them was named; choose one"
        )
        assert refusal(shop, *at, "--prompt", "x", "--model", "c") == (
            f"{server.url} serves a, b, but not the model c; choose one"
        )
        assert refusal(shop, *at, "--rows", tmp_path / "promptless.jsonl") == (
            f"{tmp_path}/promptless.jsonl, line 1 cannot be played: it has no column `prompt` with a list of chat "
            "messages, which training needs"
        )
        assert "nowhere.yaml cannot be read" in refusal("nowhere.yaml", *at, "--prompt", "x")
        assert "entry 0: tool module 'nowhere'" in refusal(tmp_path / "wrong.yaml", *at, "--prompt", "x")
        assert refusal(shop.removesuffix(":Shop"), *at, "--prompt", "x").endswith(
            f"name the environment in it as {shop[:-5]}:Class"
        )
        assert "has no 'Store'" in refusal(shop.replace("Shop", "Store"), *at, "--prompt", "x")
        assert refusal(shop, *at, "--model", "a", "--prompt", "x", "--out", there).startswith(
            f"{there} exists, and its"
        )
        assert there.read_text() == "kept\n"
    unmade = tmp_path / "unmade.jsonl"
    said_error = refusal(shop, "--openai", closed, "--prompt", "x", "--attempts", "1", "--out", unmade)
    assert said_error.startswith(f"{closed}/v1 cannot be reached")
    assert not unmade.exists()


def test_a_row_with_a_tool_that_nothing_can_run_is_named(shop: str, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 1, tools=json.dumps([FIND_ORDER]))

    with chat_server(ORDERED) as server:
        said_error = refusal(shop, "--openai", server.url, "--rows", rows)

    assert said_error.startswith(f"{rows}, line 1: the row brings tool 'find_order', but no entry of {shop} can run it")


def test_a_time_limit_of_nothing_is_refused(shop: str) -> None:
    said_error = refusal(shop, "--human", "--prompt", "x", "--max-wall-seconds", "0")

    assert said_error == "--max-wall-seconds 0 leaves no time for a turn; give more, or leave the option out"


def test_a_person_plays_at_the_keyboard(shop: str, tmp_path: Path) -> None:
    out = tmp_path / "played.jsonl"
    typed = (
        '/tools\n/tools order\n/tools buy\n/what\n\n/call order {broken\n/call order {"amount": 2}\n'
        '"""\nDone.\n/quit is only text here.\n"""\n'
    )

    done = play(shop, "--human", "--prompt", "Two.", "--out", out, stdin=typed)

    assert done.exit_code == 0, done.output
    assert "order(amount: integer (optional))  Order packs of tea." in done.stdout
    assert '"default": 1' in done.stdout
    assert "there is no tool 'buy'; the tools are order, crash, shout" in done.stdout
    assert "arguments of order: not JSON" in done.stdout
    assert "tool order: 1 left" in done.stdout
    assert "Reward 1 (environment: accepted)" in done.stdout
    (row,) = lines(out)
    assert (row["player"], row["rollout"]["num_calls"], row["rollout"]["num_tool_errors"]) == ("human", 1, 0)
    assert row["messages"][-1] == {"role": "assistant", "content": "Done.\n/quit is only text here."}


@pytest.mark.parametrize("typed", ["/quit\n", "", '"""\nDone.\n'])
def test_a_person_may_leave(shop: str, tmp_path: Path, typed: str) -> None:
    done = play(shop, "--human", "--prompt", "Two.", "--out", tmp_path / "played.jsonl", stdin=typed)

    assert done.exit_code == 1
    assert done.stderr.endswith("so this conversation is not kept; no conversation had ended.\n")
    assert list(tmp_path.glob("played*")) == []


def test_a_person_on_a_terminal_types_the_first_message_and_gets_the_terminal_back(shop: str, tmp_path: Path) -> None:
    import termios

    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-m", "verl_pivot.cli", "play", shop, "--human"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    shown = b""

    def wait_for(text: bytes) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while text not in shown:
            readable, _, _ = select.select([master], [], [], max(0, deadline - time.monotonic()))
            assert readable, shown
            shown += os.read(master, 4096)

    wait_for(b"user> ")
    os.write(master, b"Two packs.\n")
    wait_for(b"you> ")
    os.write(master, b'/call order {"amount": 2}\n')
    wait_for(b"1 left")
    process.send_signal(signal.SIGINT)
    wait_for(b"Stopped; no conversation had ended")

    assert process.wait(30) == 130
    assert termios.tcgetattr(slave)[:4] == before[:4]
    os.close(master)
    os.close(slave)


def test_an_interrupted_command_keeps_what_had_ended(shop: str, tmp_path: Path) -> None:
    rows, out = write_rows(tmp_path / "rows.jsonl", 40), tmp_path / "played.jsonl"
    slow = "- environment: " + shop + "\n- function: tests.support.tool_functions:sleep\n"
    (tmp_path / "tools.yaml").write_text(slow)
    waits = said(None, ("sleep", {"seconds": 50}))

    with chat_server([said("No."), said("No."), said("No."), waits]) as server:
        arguments = ["--openai", server.url, "--rows", str(rows), "--out", str(out), "--concurrency", "2", "--quiet"]
        command = [sys.executable, "-m", "verl_pivot.cli", "play", str(tmp_path / "tools.yaml"), *arguments]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        deadline = time.monotonic() + 60
        while not out.exists() or len(out.read_text().splitlines()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)

    assert process.returncode == 130
    assert stderr == f"Stopped; 3 conversations that had ended are in {out}.\n"
    assert len(lines(out)) == 3
