"""data.actions: which completions are actions, and why the others are malformed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.data.actions import parse_action
from verl_pivot.types import Malformed, Message, Role, ToolCall

REFUND = '<tool_call>\n{"name": "refund", "arguments": {"order_id": 17}}\n</tool_call>'


def test_text_without_calls_is_a_message() -> None:
    assert parse_action(" Done. ", ended=True) == Message(role=Role.ASSISTANT, content="Done.")


def test_calls_are_read_in_order_and_cut_out_of_the_text() -> None:
    action = parse_action(f"First.\n{REFUND}\n{REFUND.replace('17', '18')}", ended=True)

    assert action == Message(
        role=Role.ASSISTANT,
        content="First.",
        tool_calls=(
            ToolCall(name="refund", arguments={"order_id": 17}),
            ToolCall(name="refund", arguments={"order_id": 18}),
        ),
    )


@pytest.mark.parametrize("opening", ["<think>\n", ""])  # some templates end the prompt with the opening tag
def test_thinking_becomes_reasoning_and_calls_in_it_do_not_count(opening: str) -> None:
    action = parse_action(f"{opening}maybe {REFUND}?</think>Done.", ended=True)

    assert action == Message(role=Role.ASSISTANT, content="Done.", reasoning=f"maybe {REFUND}?")


def test_a_completion_that_was_cut_off_is_not_an_action() -> None:
    action = parse_action(REFUND, ended=False)

    assert isinstance(action, Malformed)
    assert action.reason == "truncated"


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "refund", "arguments": {"order_id": 17}',
        '{"name": "refund", "arguments": {}}</tool_call>',
        "<tool_call>refund(17)</tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "refund"}</tool_call>',
        '<tool_call>{"name": "refund", "arguments": "17"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        f"{REFUND}<tool_call>",
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
def test_a_broken_call_is_malformed_and_never_a_message(text: str) -> None:
    action = parse_action(text, ended=True)

    assert isinstance(action, Malformed)
    assert action.reason == "malformed_call"


@given(st.text(), st.booleans())
def test_any_text_is_an_action_or_malformed(text: str, ended: bool) -> None:
    action = parse_action(text, ended=ended)

    assert isinstance(action, Message | Malformed)


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_arguments_are_read_as_they_were_written(arguments: dict[str, bool | int | str | None]) -> None:
    block = json.dumps({"name": "refund", "arguments": arguments}).replace("<", "\\u003c")

    action = parse_action(f"<tool_call>{block}</tool_call>", ended=True)

    assert isinstance(action, Message)
    assert action.tool_calls == (ToolCall(name="refund", arguments=dict(arguments)),)
