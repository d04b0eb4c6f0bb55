"""Messages of a conversation -> AnsweredCall: each tool call with its result."""

from collections.abc import Sequence
from typing import NamedTuple

from verl_pivot.data.messages import is_result_of
from verl_pivot.types import Message, Role, ToolCall


class AnsweredCall(NamedTuple):
    """One tool call of a conversation and the message that holds its result."""

    turn: int
    """Number of the assistant turn with the call, from 0."""
    position: int
    """Position of the message with the call among all messages."""
    number: int
    """Position of the call among those of its turn, from 0."""
    call: ToolCall
    result: Message | None
    """Message of the tool; None if no message answers the call."""


def answered_calls(messages: Sequence[Message]) -> list[AnsweredCall]:
    """[num_calls] every call in order with its result, which is matched by id if both have one, else by name."""
    found: list[AnsweredCall] = []
    turn = -1
    for position, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            turn += 1
            results = _results_after(messages, position)
            for number, call in enumerate(message.tool_calls):
                match = next((result for result in results if is_result_of(messages[result], call)), None)
                if match is not None:
                    results.remove(match)
                found.append(AnsweredCall(turn, position, number, call, None if match is None else messages[match]))
    return found


def _results_after(messages: Sequence[Message], position: int) -> list[int]:
    """Positions of the tool messages that directly follow a message."""
    end = position + 1
    while end < len(messages) and messages[end].role is Role.TOOL:
        end += 1
    return list(range(position + 1, end))
