"""`verl-pivot import` and `select` on real trajectories and rows, which are not part of the project."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tests.support.paths import SHARED_DATA
from verl_pivot.cli import app
from verl_pivot.data.pivots import row_to_turn
from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import split_key, turns
from verl_pivot.types import Json, Message, Role, ToolCall, Turn
from verl_pivot.verifiers.registry import get_verifier

tool_call = get_verifier("tool_call")

DATA = SHARED_DATA
AIRLINE = DATA / "tau_airline" / "gpt-4o-airline.jsonl"
AIRLINE_TOOLS = DATA / "tau_airline" / "airline_tools.json"
NEMO_GYM = DATA / "nemo_gym"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the real data are not at ../shared/data")


def test_all_150_airline_trajectories_import_and_the_87_failed_ones_are_left_out(tmp_path: Path) -> None:
    passed = [json.loads(line) for line in import_files(tmp_path, AIRLINE).read_text().splitlines()]
    everything = list(read_trajectories(import_airline(tmp_path)))

    assert not list(tmp_path.glob("*.rejected.jsonl"))
    assert len(passed) == 63
    assert Counter(trajectory.passed for trajectory in everything) == {False: 87, True: 63}
    assert len({trajectory.id for trajectory in everything}) == 150
    assert (
        len({split_key(trajectory.id, trajectory.metadata) for trajectory in everything}) == 50
    )  # three trials of each task


def test_every_assistant_turn_of_the_airline_is_a_candidate_with_all_messages_before_it(tmp_path: Path) -> None:
    candidates = airline_turns(tmp_path)

    assert len(candidates) == 1808
    assert sum(bool(turn.expert.tool_calls) for turn in candidates) == 862
    sources = {row["task_id"] * 1000 + row["trial"]: row["traj"] for row in lines_of(AIRLINE)}
    for turn in candidates:
        task, trial = turn.trajectory_id.removeprefix("gpt-4o-airline-").split("-")
        source = sources[int(task) * 1000 + int(trial)]
        assert source[len(turn.state)]["role"] == "assistant"
        before = source[: len(turn.state)]
        assert [message.content for message in turn.state] == [message["content"] or "" for message in before]


def test_each_expert_action_of_the_airline_is_accepted_and_each_near_miss_refused(tmp_path: Path) -> None:
    async def check() -> Counter[str]:
        refused: Counter[str] = Counter()
        for turn in airline_turns(tmp_path):
            assert (await tool_call(turn.expert, turn)).score == 1.0, turn.id
            for mutation, action in mutations(turn):
                verdict = await tool_call(action, turn)
                assert verdict.score == 0.0, (turn.id, mutation, action)
                refused[mutation] += 1
        return refused

    refused = asyncio.run(check())

    assert refused["call against message"] == 862
    assert refused["message against call"] == 946
    assert refused["other tool"] == 862
    assert refused["dropped argument"] == refused["changed value"] == 1766


@pytest.mark.heavy
def test_pivots_of_the_airline_with_the_filter_off_read_back_as_its_turns(tmp_path: Path) -> None:
    trajectories = import_airline(tmp_path)
    out = tmp_path / "pivots.parquet"

    result = CliRunner().invoke(
        app, ["select", str(trajectories), "--out", str(out), "--keep", "all", "--max-prompt-tokens", "0"]
    )

    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "pivots.report.json").read_text())
    assert report["num_by_decision"]["expert_refused"] == 0
    assert report["num_by_decision"]["duplicate"] == 5
    names = ("pivots.parquet", "pivots.validation.parquet")
    rows = [pyarrow.parquet.read_table(tmp_path / name).to_pylist() for name in names]
    by_id = {turn.id: turn for turn in airline_turns(tmp_path)}
    read = [row_to_turn(row) for split in rows for row in split]
    assert len(read) == 1803
    assert all(by_id[turn.id] == turn for turn in read)
    tasks = [{split_key(turn.trajectory_id, turn.metadata) for turn in map(row_to_turn, split)} for split in rows]
    assert tasks[0] & tasks[1] == set()


@pytest.mark.parametrize(
    ("name", "num_calls", "num_messages"),
    [
        ("single_step_tool_use_with_argument_comparison.example.jsonl", 3, 2),
        ("single_step_tool_use_with_argument_comparison.example_rollouts.jsonl", 3, 2),
        ("swe_pivot.example.jsonl", 5, 0),
        ("terminus_judge.example.jsonl", 0, 5),
    ],
)
def test_rows_of_nemo_gym_import_as_one_candidate_each(
    tmp_path: Path, name: str, num_calls: int, num_messages: int
) -> None:
    trajectories = list(read_trajectories(import_files(tmp_path, NEMO_GYM / name)))

    candidates = [turn for trajectory in trajectories for turn in turns(trajectory)]
    assert len(trajectories) == len(candidates) == num_calls + num_messages
    assert sum(bool(turn.expert.tool_calls) for turn in candidates) == num_calls
    assert all(asyncio.run(tool_call(turn.expert, turn)).score == 1.0 for turn in candidates)


def test_reasoning_in_nemo_gym_rows_is_kept_or_stripped(tmp_path: Path) -> None:
    name = "single_step_tool_use_with_argument_comparison.example.jsonl"
    num_items = sum(
        item.get("type") == "reasoning"
        for row in lines_of(NEMO_GYM / name)
        for item in row["responses_create_params"]["input"]
    )

    assert num_items == 15
    for policy, expected in (("keep", num_items), ("strip", 0)):
        out = import_files(tmp_path, NEMO_GYM / name, "--thinking", policy)
        messages = [message for trajectory in read_trajectories(out) for message in trajectory.messages]
        assert sum(message.reasoning is not None for message in messages) == expected


def test_rows_without_an_expert_action_are_rejected_one_by_one(tmp_path: Path) -> None:
    rollouts, examples = (NEMO_GYM / f"swe_pivot.{name}.jsonl" for name in ("example_rollouts", "example"))
    out = import_files(tmp_path, rollouts, str(examples))

    rejected = [json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [(row["line"], row["reason"]) for row in rejected] == [(i, "no_expected_action") for i in range(1, 6)]
    assert [trajectory.id for trajectory in read_trajectories(out)] == [f"example_{i}" for i in range(1, 6)]
    assert next(read_trajectories(out)).metadata["pivot_tags"] == ["P1"]


def mutations(turn: Turn) -> Iterator[tuple[str, Message]]:
    """Near misses of the expert's action, each with its kind."""
    if not turn.expert.tool_calls:
        yield "message against call", replace(turn.expert, tool_calls=(ToolCall(name="think", arguments={}),))
        return
    (call,) = turn.expert.tool_calls
    yield "call against message", Message(role=Role.ASSISTANT, content="One moment.")
    yield "other tool", with_call(turn, replace(call, name="think" if call.name != "think" else "calculate"))
    for name, value in call.arguments.items():
        others = {other: kept for other, kept in call.arguments.items() if other != name}
        yield "dropped argument", with_call(turn, replace(call, arguments=others))
        yield "changed value", with_call(turn, replace(call, arguments={**others, name: changed(value)}))


def with_call(turn: Turn, call: ToolCall) -> Message:
    return replace(turn.expert, tool_calls=(call,))


def changed(value: Json) -> Json:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case list():
            return value[1:] or ["x"]
        case dict():
            return {**value, "x": 1}
        case None:
            return ""


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def airline_turns(folder: Path) -> list[Turn]:
    return [turn for trajectory in read_trajectories(import_airline(folder)) for turn in turns(trajectory)]


def import_airline(folder: Path) -> Path:
    return import_files(folder, AIRLINE, "--outcome", "all", "--tools", str(AIRLINE_TOOLS))


def import_files(folder: Path, path: Path, *options: str) -> Path:
    out = folder / "out.jsonl"
    result = CliRunner().invoke(app, ["import", str(path), "--out", str(out), "--allow-no-tools", *options])
    assert result.exit_code == 0, result.output
    return out
