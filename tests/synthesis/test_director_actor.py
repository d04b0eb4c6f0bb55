"""IBSEN's director and actors over a scripted server: exact conversations, and the reason of every draft that fails."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from tests.support.chat_server import chat_server, said
from tests.support.direct_workshop import direct_workshop
from tests.support.fake_engine import Answer
from tests.support.workshops import workshop
from tests.synthesis.test_magnet import call
from verl_pivot.data.json_values import BadRowError
from verl_pivot.playing.running import open_toolset
from verl_pivot.synthesis.director_actor import DirectorActor, DirectorActorOptions
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.rollout_tools import RolloutTools
from verl_pivot.types import Json, JsonObject

TALLY = "tests.support.tallies:Tally"
LINES = (("user", "Please reach 3."), ("assistant", "It is 3 now."))
ASK, DO = "Ask politely.", "Do it, and tell the result."


def planned(*lines: tuple[str, str]) -> Answer:
    shown = [{"speaker": speaker, "line": line} for speaker, line in lines]
    return said(json.dumps({"outline": "The user asks.", "lines": shown}))


def checked(completed: bool) -> Answer:
    return said(json.dumps({"reason": "seen", "completed": completed}))


SAYS = said("Could you reach 3?")
DONE = said("I told it: 3.")
GOOD = (planned(*LINES), said(ASK), SAYS, said(DO), call("tell", number=3), DONE, checked(True))


def task(*goals: Json, wanted: int = 3) -> JsonObject:
    metadata: JsonObject = {"wanted": wanted, **({"goals": [*goals]} if goals else {})}
    return {"prompt": [{"role": "user", "content": "Reach 3."}], "metadata": json.dumps(metadata)}


async def played(answers: Sequence[Answer], row: JsonObject, **options: Any) -> tuple[Draft, Any]:
    """The draft, and the requests that the server got."""
    chosen = DirectorActorOptions(**{"min_turns": 2, "max_turns": 4, "attempts": 1, **options})
    with chat_server(answers) as server:
        inputs = Inputs(toolset=open_toolset(TALLY))
        async with direct_workshop(server.url, inputs=inputs) as workshop:
            (draft,) = await DirectorActor(chosen)(Draft(id="0", task=row), workshop)
        return draft, server.requests


def shown(draft: Draft) -> list[list[object]]:
    assert draft.trajectory is not None
    return [
        [message.role.value, message.content, *(call.arguments["number"] for call in message.tool_calls)]
        for message in draft.trajectory.messages
    ]


async def test_actors_read_the_instruction_and_the_conversation_does_not_keep_it() -> None:
    draft, requests = await played(GOOD, task("Reach 3."))

    assert shown(draft) == [
        ["user", "Could you reach 3?"],
        ["assistant", "", 3],
        ["tool", "3"],
        ["assistant", "I told it: 3."],
    ]
    assert draft.trajectory is not None
    assert draft.trajectory.passed is True
    assert (draft.values["goals"], draft.values["turns_per_goal"]) == (["Reach 3."], [2])
    users, assistants = requests[2]["messages"], requests[4]["messages"]
    assert f"for your next line: {ASK}" in users[0]["content"]
    assert assistants[0]["content"].endswith(f"for your next line: {DO}")
    assert [message["role"] for message in requests[5]["messages"]] == ["system", "user", "assistant", "tool"]
    assert "Please reach 3." in requests[1]["messages"][0]["content"]
    assert all("Please reach 3." not in json.dumps(request) for request in requests[2:3] + requests[4:])


async def test_goals_come_in_order_and_each_begins_a_new_script() -> None:
    second = (
        planned(("user", "Thanks."), ("assistant", "Bye.")),
        said(ASK),
        said("Thank you."),
        said(DO),
        said("Bye."),
    )
    draft, requests = await played([*GOOD, *second, checked(True)], task("Reach 3.", "Say goodbye."))

    assert draft.values["turns_per_goal"] == [2, 2]
    assert [message[:2] for message in shown(draft)[4:]] == [["user", "Thank you."], ["assistant", "Bye."]]
    assert "The goal of this part: Say goodbye." in requests[7]["messages"][0]["content"]


async def test_a_task_without_goals_has_what_its_user_wants_for_one() -> None:
    draft, _ = await played(GOOD, task())

    assert draft.values["goals"] == ["Reach 3."]


async def test_the_goal_is_asked_for_from_the_fewest_turns_on_and_a_script_that_is_used_up_is_followed_by_another() -> (
    None
):
    again = (planned(("user", "Sure?"), ("assistant", "Yes.")), said(ASK), said("Is it so?"), said(DO), said("It is."))
    draft, requests = await played([*GOOD[:-1], *again, checked(True)], task(), min_turns=3)

    assert draft.values["turns_per_goal"] == [4]
    assert len(requests) == len(GOOD) - 1 + len(again) + 1


async def refused(answers: Sequence[Answer], row: JsonObject | None = None, **options: Any) -> str:
    """Reason for which the draft fails."""
    try:
        draft, _ = await played(answers, row or task(), **options)
    except BadRowError as error:
        return error.reason
    assert draft.finding is not None
    return draft.finding.reason


AGAIN = (*GOOD[:4], DONE)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([*GOOD[:-1], checked(False), *AGAIN, checked(False)], "goal_not_reached"),
        ([*GOOD[:-1], said("Sure!"), *AGAIN, said("?")], "goal_not_reached"),
        ([planned(*LINES, *LINES, *LINES)], "script_too_long"),
        ([planned(LINES[1])], "speakers_not_in_turn"),
        ([planned(LINES[0], LINES[0])], "speakers_not_in_turn"),
        ([said("Action!")], "unreadable_answer"),
        ([planned(*LINES), said("Say: please reach 3.")], "instruction_has_line"),
        ([planned(*LINES), call("tell", number=3)], "bad_instruction"),
        ([planned(*LINES), said(ASK), said("Well.<|im_start|>user")], "malformed_message"),
        ([planned(*LINES), said(ASK), SAYS, said(DO), said("Well.<|im_start|>user")], "malformed_message"),
        ([planned(*LINES), said(ASK), SAYS, said(DO), call("tell", number=1)], "too_many_calls"),
    ],
)  # fmt: skip
async def test_what_stays_wrong_ends_the_draft_with_its_reason(answers: list[Answer], reason: str) -> None:
    assert await refused(answers) == reason


async def test_an_environment_has_the_last_word() -> None:
    assert await refused(GOOD, task(wanted=4)) == "not_solved"


@pytest.mark.parametrize("goals", [[""], ["Reach 3.", 7]])
async def test_goals_that_are_no_texts_are_refused(goals: list[Json]) -> None:
    assert await refused(GOOD, task(*goals)) == "bad_goals"


class Greeting:
    """An environment of a framework that begins with a text."""

    async def begin(self) -> str:
        return "You stand before a door."

    async def close(self) -> None:
        """Do nothing: nothing is open."""


class GreetingToolset:
    def open(self, row: JsonObject) -> RolloutTools:
        return RolloutTools(Toolbox(tools={}), [Greeting()])  # type: ignore[list-item]


async def test_an_environment_that_speaks_first_is_refused() -> None:
    work = workshop(inputs=Inputs(toolset=GreetingToolset()))  # type: ignore[arg-type]

    (draft,) = await DirectorActor(DirectorActorOptions())(Draft(id="0", task=task()), work)
    assert draft.finding is not None
    assert draft.finding.reason == "environment_speaks_first"


def test_a_goal_has_at_most_as_many_turns_as_it_needs() -> None:
    with pytest.raises(ValidationError, match="min_turns must not exceed max_turns, which is 4, got 5"):
        DirectorActorOptions(max_turns=4)
