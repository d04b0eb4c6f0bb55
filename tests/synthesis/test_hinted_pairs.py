"""Pairs by right and wrong hints over a scripted server, wrong calls, and the check of experts."""

import json
from random import Random
from typing import Any

import pytest

from tests.support.chat_server import chat_server, said
from tests.support.direct_workshop import direct_workshop
from tests.support.fake_engine import Answer
from tests.support.linked_tools import REFUND, SHOP, make_tool, refund_of, user
from tests.support.workshops import refused, workshop
from verl_pivot.data.turns import turns
from verl_pivot.quality.contract import Finding
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.expert_accepted import ExpertAcceptedOptions, expert_accepted
from verl_pivot.synthesis.hinted_pairs import HintedPairs, HintedPairsOptions
from verl_pivot.synthesis.wrong_calls import wrong_calls
from verl_pivot.types import Message, Role, ToolCall, Trajectory, Turn

TRAJECTORY = refund_of("cus_17", "ord_9")
REFUNDING = turns(TRAJECTORY)[2]
RIGHT = said("Ord_9 it is.", ("refund", {"order_id": "ord_9", "reason": "broke"}))


def one_call(call: ToolCall, *tools: Any) -> Turn:
    return Turn(
        trajectory_id="shop-1",
        index=0,
        state=(user("Refund ord_9."),),
        expert=Message(role=Role.ASSISTANT, tool_calls=(call,)),
        tools=tools,
    )


def test_wrong_calls_mix_up_values_first_and_tools_then() -> None:
    found = list(wrong_calls(REFUNDING, Random(0)))

    values = ["cus_17", "ann@shop.example", "ord_9", "broke"]
    assert all(call.name == "refund" for call in found[:2])
    assert {call.arguments["order_id"] for call in found[:2]} <= set(values)
    assert sorted((call.name, json.dumps(call.arguments)) for call in found[2:]) == [
        ("find_customer", "{}"),
        ("list_orders", "{}"),
    ]


def test_a_call_without_arguments_among_no_other_tools_has_no_wrong_call() -> None:
    turn = one_call(ToolCall(name="ping", arguments={}), make_tool("ping", []))

    assert list(wrong_calls(turn, Random(0))) == []


async def made(answers: list[Answer], trajectory: Trajectory = TRAJECTORY, **options: Any) -> tuple[list[Draft], Any]:
    """The drafts of the step, and the requests that the server got."""
    with chat_server(answers) as server:
        async with direct_workshop(server.url, seed=SEED) as workshop:
            drafts = await HintedPairs(HintedPairsOptions(**options))(Draft(id="0", trajectory=trajectory), workshop)
        return list(drafts), server.requests


def wrong_answer(requests: Any) -> dict[str, Any]:
    """The call that the last hint asks for."""
    hint = requests[-1]["messages"][0]["content"]
    return dict(json.loads(hint.partition("exactly this call: ")[2].partition("\n")[0]))


SEED = 0
"""Seed for which the step chooses the turn with the refund."""


async def test_a_pair_has_the_right_and_the_wrong_action_and_no_hints() -> None:
    _, requests = await made([RIGHT, said("?")], attempts=1)
    wrong = wrong_answer(requests)

    (whole, pair), requests = await made([RIGHT, said("Done.", (wrong["name"], wrong["arguments"]))])

    assert (whole.id, whole.trajectory, whole.worse) == ("0/0", TRAJECTORY, None)
    assert (pair.id, pair.values, pair.finding) == ("0/1", {"turn": 2}, None)
    assert pair.trajectory is not None
    assert pair.worse is not None
    assert pair.trajectory.expert_turns == pair.worse.expert_turns == "last"
    assert pair.trajectory.messages[:-1] == pair.worse.messages[:-1] == REFUNDING.state
    chosen, rejected = pair.trajectory.messages[-1], pair.worse.messages[-1]
    assert chosen.content == "Ord_9 it is."
    assert chosen.tool_calls == REFUNDING.expert.tool_calls
    assert [(call.name, call.arguments) for call in rejected.tool_calls] == [(wrong["name"], wrong["arguments"])]
    assert rejected.tool_calls != chosen.tool_calls
    assert [len(request["messages"]) for request in requests] == [6, 6]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([said("No.")], "right_hint_not_followed"),
        ([said(None, ("refund", {"order_id": "ord_8", "reason": "broke"}))], "right_hint_not_followed"),
        (
            [said("As told in the hint.", ("refund", {"order_id": "ord_9", "reason": "broke"}))],
            "right_hint_not_followed",
        ),
        ([said(None, ("refund", "nonsense"))], "right_hint_not_followed"),
        ([RIGHT, RIGHT], "wrong_hint_not_followed"),
        ([RIGHT, said("I had rather not.")], "wrong_hint_not_followed"),
    ],
)
async def test_an_action_that_is_not_as_its_hint_rejects_the_pair_alone(answers: list[Answer], reason: str) -> None:
    whole, pair = (await made(answers))[0]

    assert whole.finding is None
    assert pair.finding is not None
    assert pair.finding.reason == reason
    assert pair.worse is None


async def test_a_hint_that_the_endpoint_refuses_rejects_the_pair_alone() -> None:
    whole, pair = await HintedPairs(HintedPairsOptions())(Draft(id="0", trajectory=TRAJECTORY), workshop(refused))

    assert whole.finding is None
    assert (pair.id, pair.finding) == ("0/1", Finding(reason="question_refused", detail="the answer is withheld"))


async def test_a_trajectory_without_calls_has_no_pairs() -> None:
    silent = Trajectory(id="s", messages=(user("Hi"), Message(role=Role.ASSISTANT, content="Hello.")), tools=SHOP)

    assert [draft.id for draft in (await made([RIGHT], silent))[0]] == ["0/0"]


async def test_pairs_stand_at_different_turns() -> None:
    drafts, _ = await made([said("No.")], num=5)

    assert [draft.values.get("turn") for draft in drafts] == [None, 0, 1, 2]


NAN = ToolCall(name="refund", arguments={"order_id": float("nan")})
INCOMPARABLE = Trajectory(
    id="t",
    messages=(user("Refund it."), Message(role=Role.ASSISTANT, tool_calls=(NAN,))),
    tools=(REFUND,),
)


@pytest.mark.parametrize(
    ("trajectory", "score", "reason"),
    [
        (TRAJECTORY, 1.0, "accepted"),
        (Trajectory(id="t", messages=(), tools=SHOP), 0.0, "no_expert_turn"),
        (INCOMPARABLE, None, "broken_gold"),
    ],
)
async def test_a_trajectory_passes_whose_verifier_accepts_each_turn(
    trajectory: Trajectory, score: float | None, reason: str
) -> None:
    check = expert_accepted(ExpertAcceptedOptions())
    async with direct_workshop("http://127.0.0.1:9") as workshop:
        verdict = await check(Draft(id="0", trajectory=trajectory), workshop)

    assert (verdict.score, verdict.reason) == (score, reason)
