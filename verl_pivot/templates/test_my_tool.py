"""Tests of `my_tool`: what the policy reads after calls with right and with wrong arguments."""

import asyncio

from verl_pivot.templates.my_tool import my_tool
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.functions import FunctionTool
from verl_pivot.types import ErrorKind, Json, ToolCall


def read(*calls: dict[str, Json]) -> list[tuple[str, ErrorKind | None]]:
    """Results of the calls of one trajectory, in their order, as in training."""
    toolbox = Toolbox(tools={"my_tool": FunctionTool(my_tool)})
    outcomes = asyncio.run(toolbox.run([ToolCall(name="my_tool", arguments=arguments) for arguments in calls]))
    assert [outcome.failure for outcome in outcomes] == [""] * len(calls)  # the tool itself never breaks
    return [(outcome.observation.text, outcome.observation.error) for outcome in outcomes if outcome.observation]


def test_calls_of_one_trajectory_share_its_basket() -> None:
    assert read({"item": "tea"}, {"item": "coffee"}, {"item": "tea", "amount": 2}) == [
        ("1 tea", None),
        ("1 tea, 1 coffee", None),
        ("3 tea, 1 coffee", None),
    ]


def test_more_than_there_is_is_the_policys_mistake() -> None:
    ((text, error),) = read({"item": "tea", "amount": 4})

    assert text.endswith("there are only 3 of tea")
    assert error is ErrorKind.REFUSED


def test_arguments_that_the_schema_refuses_never_reach_the_tool() -> None:
    ((_, error),) = read({"item": "tea", "amount": 0})

    assert error is ErrorKind.INVALID_ARGUMENT
