"""Tests of the reader of `my_format`: what it finds in a row, and what it refuses."""

import json
from pathlib import Path

from verl_pivot.data.json_values import BadRowError
from verl_pivot.formats.registry import detected_format
from verl_pivot.templates.my_format import read_my_format
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

ROW: JsonObject = json.loads(Path(__file__).with_name("my_format_example.jsonl").read_text().splitlines()[0])


def refusal(step: Json) -> str:
    """The reason with which a row is refused."""
    try:
        read_my_format({**ROW, "steps": [step]})
    except BadRowError as error:
        return error.reason
    return "read"


def test_the_row_is_recognized_and_read_whole() -> None:
    assert detected_format(ROW).name == "my_format"
    found = read_my_format(ROW)
    assert found.messages == (
        Message(role=Role.USER, content="Where is order 17?"),
        Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="find_order", arguments={"order_id": 17}),)),
        Message(role=Role.TOOL, content="sent", name="find_order"),
        Message(role=Role.ASSISTANT, content="It is on its way."),
    )
    assert (found.id, found.passed) == ("17", True)
    assert found.columns == ROW.keys()


def test_steps_that_cannot_be_read_are_refused_by_their_reason() -> None:
    assert refusal({"by": "nobody", "text": "Hi"}) == "unknown_role"
    assert refusal({"by": "agent", "calls": [{"tool": "find_order"}]}) == "bad_tool_call"
    assert refusal({"by": "agent", "text": "Hi"}) == "read"
