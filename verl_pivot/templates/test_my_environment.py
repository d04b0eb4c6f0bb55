"""Tests of `MyEnvironment`: what the policy reads, and how trajectories are scored."""

import asyncio
import json
from pathlib import Path

from verl_pivot.data.tool_schemas import name_of
from verl_pivot.templates.my_environment import MyEnvironment
from verl_pivot.tools.calls import CallOutcome, Toolbox
from verl_pivot.tools.contract import CallPolicy
from verl_pivot.tools.environments import EnvironmentKind
from verl_pivot.types import ErrorKind, Json, Message, Role, ToolCall, Verdict

ANSWER = Message(role=Role.ASSISTANT, content="It is ordered.")
METADATA: dict[str, Json] = {"wanted": {"tea": 2}, "stock": {"tea": 3}}


def play(*calls: ToolCall, answer: Message | None = ANSWER) -> tuple[list[CallOutcome], Verdict | None]:
    """Make calls and end the trajectory, as in training."""

    async def run() -> tuple[list[CallOutcome], Verdict | None]:
        running = EnvironmentKind.read(MyEnvironment, "MyEnvironment", CallPolicy()).open(METADATA)
        outcomes = await Toolbox(tools={name_of(tool.schema): tool for tool in running.tools}).run(calls)
        verdict = await running.score(answer)
        await running.close()
        return outcomes, verdict

    return asyncio.run(run())


def order(amount: int) -> ToolCall:
    return ToolCall(name="place_order", arguments={"item": "tea", "amount": amount})


def test_what_was_wanted_and_nothing_else_is_accepted() -> None:
    outcomes, verdict = play(ToolCall(name="list_stock", arguments={}), order(2))

    assert [outcome.observation.text for outcome in outcomes if outcome.observation] == ["3 tea", "1 left"]
    assert verdict == Verdict.accept()


def test_another_order_is_refused() -> None:
    assert play(order(1))[1] == Verdict.refuse("other_order", "{'tea': 1}")


def test_more_than_there_is_is_the_policys_mistake() -> None:
    (outcome,), _ = play(order(4))

    assert outcome.observation is not None
    assert outcome.observation.text.endswith("there are 3 of tea")
    assert outcome.observation.error is ErrorKind.REFUSED


def test_a_trajectory_that_a_limit_ended_is_refused() -> None:
    assert play(order(2), answer=None)[1] == Verdict.refuse("no_answer")


def test_every_problem_can_be_opened() -> None:
    lines = Path(__file__).with_name("my_environment_problems.jsonl").read_text().splitlines()

    assert len([MyEnvironment(json.loads(json.loads(line)["metadata"])) for line in lines]) == 2
