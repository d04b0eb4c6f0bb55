"""Messages -> the calls in them, each with its result and whether that reports an error."""

import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from verl_pivot.data.messages import answers
from verl_pivot.data.storage import BadRowError, decode_json
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


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression ({error})") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]

ERROR_PATTERN = r"(?i)^\s*(error|exception|traceback)\b"
_FAILURES = {"error": True, "errors": True, "is_error": True, "isError": True, "success": False, "ok": False}
"""Keys of a JSON result that say what came of a call -> whether a true value there means failure."""


class ErrorSigns:
    """Tells results that report an error: by their text, or by a key of the JSON object that they are."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern)

    def are_in(self, result: Message) -> bool:
        text = result.content
        return bool(self._pattern.search(text)) or _object_fails(text)


def _object_fails(text: str) -> bool:
    if not text.lstrip().startswith("{") or not any(f'"{key}"' in text for key in _FAILURES):
        return False
    try:
        value = decode_json(text)
    except BadRowError:  # the text only looks like JSON
        return False
    assert isinstance(value, dict), value
    return any(bool(value[key]) == failing for key, failing in _FAILURES.items() if key in value)
