"""HardGen: tools that a policy fails at, paths to them, hints to the caller, and what is still hard."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.chat_server import chat_server, said
from tests.support.direct_workshop import direct_workshop
from tests.support.fake_engine import Answer
from tests.support.linked_tools import called, refund_of
from tests.support.paths import ROOT
from tests.support.workshops import refused, workshop
from tests.synthesis.test_hinted_pairs import INCOMPARABLE
from tests.synthesis.test_magnet import GOOD, call, changed, played
from tests.synthesis.test_magnet_recipe import lines, recordings
from verl_pivot.cli import app
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.hard_samples import StillHardOptions, still_hard
from verl_pivot.synthesis.hard_tools import probed_turns, wrong_shares
from verl_pivot.synthesis.magnet_prompts import CALLER
from verl_pivot.types import Trajectory

CLERK = ROOT / "tests" / "support" / "path_clerk.py"
TRAJECTORY = refund_of("cus_17", "ord_9")
FOUND = call("find_customer", email="ann@shop.example")
LISTED = call("list_orders", customer_id="cus_17")
REFUNDED = call("refund", order_id="ord_9", reason="broke")


def test_probes_are_the_first_turns_of_each_tool() -> None:
    probes = probed_turns([refund_of(f"cus_{n}", f"ord_{n}", id=f"shop-{n}") for n in range(9)], 2)

    assert {tool: [turn.id for turn in found] for tool, found in probes.items()} == {
        "find_customer": ["shop-0:0", "shop-1:0"],
        "list_orders": ["shop-0:1", "shop-1:1"],
        "refund": ["shop-0:2", "shop-1:2"],
    }


async def test_the_share_of_wrong_probes_leaves_undecided_ones_out() -> None:
    probes = probed_turns([TRAJECTORY], 4)
    probes = {"refund": [probes["refund"][0], probes["refund"][0]], "odd": probed_turns([INCOMPARABLE], 1)["refund"]}
    with chat_server([REFUNDED]) as server:
        async with direct_workshop(server.url) as workshop:
            right = await wrong_shares(probes, workshop, "policy", 1024)
    with chat_server([said("No."), said(None, ("refund", "{")), said("")]) as server:
        async with direct_workshop(server.url) as workshop:
            wrong = await wrong_shares({"refund": probes["refund"]}, workshop, "policy", 1024)

    assert (right, wrong) == ({"refund": 0.0}, {"refund": 1.0})


async def test_a_probe_that_the_endpoint_refuses_is_undecided() -> None:
    probes = {"refund": probed_turns([TRAJECTORY], 4)["refund"]}

    assert await wrong_shares(probes, workshop(refused), "policy", 1024) == {}


async def judged(answers: list[Answer], trajectory: Trajectory | None) -> tuple[float | None, str]:
    with chat_server(answers) as server:
        async with direct_workshop(server.url) as workshop:
            verdict = await still_hard(StillHardOptions())(Draft(id="0", trajectory=trajectory), workshop)
    return verdict.score, verdict.reason


async def test_a_conversation_is_still_hard_where_the_policy_is_wrong_at_one_call() -> None:
    assert await judged([said("No.")], TRAJECTORY) == (1.0, "accepted")
    assert await judged([REFUNDED], INCOMPARABLE) == (None, "broken_gold")
    assert await judged([FOUND], None) == (0.0, "no_trajectory")
    one = Trajectory(id="t", messages=TRAJECTORY.messages[:2], tools=TRAJECTORY.tools)
    assert await judged([FOUND], one) == (0.0, "too_easy")


async def test_a_hint_says_what_was_wrong_and_no_message_keeps_it() -> None:
    with chat_server(changed(1, call("find_customer"), GOOD[1])) as server:
        messages = await played(server, hints=True)
        asked: Any = [request["messages"][0]["content"] for request in server.requests[1:4]]

    assert asked[0] == CALLER
    assert "find_customer: $: 'email' is a required property" in asked[1]
    assert asked[2] != asked[1]
    assert [message.content for message in messages if "wrong" in message.content] == []


async def test_without_hints_the_question_stays_as_it_was() -> None:
    with chat_server(changed(1, call("find_customer"), GOOD[1])) as server:
        await played(server)
        asked: Any = server.requests

    assert asked[1]["messages"] == asked[2]["messages"]


def run(folder: Path, policy: str, *options: str) -> Any:
    writers = folder / "writers.yaml"
    writers.write_text(f"writer: {{program: '{CLERK}:answer'}}\npolicy: {{program: '{CLERK}:{policy}'}}\n")
    given = ["--trajectories", str(recordings(folder)), "--writers", str(writers), "--out", str(folder / "out")]
    return CliRunner().invoke(app, ["synthesize", "hard_samples", *given, "--set", "numbers.num=12", *options])


def test_every_row_ends_in_the_tool_that_the_policy_fails_at(tmp_path: Path) -> None:
    result = run(tmp_path, "timid")

    assert result.exit_code == 0, result.output
    kept = lines(tmp_path / "out" / "trajectories.jsonl")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    made = [[each for message in row["messages"] for each in message.get("tool_calls", ())] for row in kept]
    names = {tuple(call["function"]["name"] for call in calls) for calls in made}
    assert len(kept) > 0
    assert report["num_drafts"] == 12
    assert names == {("find_customer", "list_orders", "refund")}
    assert {row["metadata"]["verl_pivot"]["synthesis"]["values"]["hard_tool"] for row in kept} == {"refund"}
    assert all(sum(message["role"] == "user" for message in row["messages"]) == 1 for row in kept)


def test_a_recorded_call_of_a_tool_without_a_schema_is_no_probe(tmp_path: Path) -> None:
    rows = [refund_of(f"cus_{number}", f"ord_{number}", id=f"shop-{number}") for number in range(20, 23)]
    first, *later = rows[0].messages
    unknown = replace(rows[0], messages=(first, *called("forget", {"email": "ann@shop.example"}, "done"), *later))
    path = tmp_path / "unknown.jsonl"
    path.write_text("".join(encode_json(trajectory_as_dict(row)) + "\n" for row in (unknown, *rows[1:])))

    result = run(tmp_path, "timid", "--trajectories", str(path))

    assert result.exit_code == 0, result.output
    kept = lines(tmp_path / "out" / "trajectories.jsonl")
    assert {row["metadata"]["verl_pivot"]["synthesis"]["values"]["hard_tool"] for row in kept} == {"refund"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("hard_path.min_calls=9", "step hard_path finds no value that passes between two of 3 tools"),
        ("still_hard.max_tokens=1", "max_tokens: Input should be greater than or equal to 16, got 1"),
    ],
)
def test_a_careless_users_mistake_is_one_sentence(tmp_path: Path, option: str, message: str) -> None:
    result = run(tmp_path, "timid", "--set", option)

    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


def test_a_policy_that_fails_nowhere_is_said_to_be_right(tmp_path: Path) -> None:
    result = run(tmp_path, "perfect")

    assert result.exit_code == 1
    assert "no hard tool among 3 probed tools" in " ".join(result.output.split())
