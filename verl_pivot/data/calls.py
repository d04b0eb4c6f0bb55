"""Messages -> the calls in them, each with its result."""

from collections.abc import Sequence
from typing import NamedTuple

from verl_pivot.data.messages import answers
from verl_pivot.types import Message, Role, ToolCall


class AnsweredCall(NamedTuple):
    turn: int
    """Among the assistant's, from 0."""
    position: int
    """Of the message with the call."""
    call: ToolCall
    result: Message | None


def answered_calls(messages: Sequence[Message]) -> list[AnsweredCall]:
    """[num_calls] every call in order; results are told by id where both have one, else by name, as the import does."""
    found: list[AnsweredCall] = []
    turn = -1
    for position, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            turn += 1
            results = _results_after(messages, position)
            for call in message.tool_calls:
                at = next((at for at in results if answers(messages[at], call)), None)
                if at is not None:
                    results.remove(at)
                found.append(AnsweredCall(turn, position, call, None if at is None else messages[at]))
    return found


def _results_after(messages: Sequence[Message], position: int) -> list[int]:
    end = position + 1
    while end < len(messages) and messages[end].role is Role.TOOL:
        end += 1
    return list(range(position + 1, end))
