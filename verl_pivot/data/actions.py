"""Text of a completion -> the policy's action as a Message, or Malformed with the reason."""

import json
import re
from dataclasses import dataclass

from verl_pivot.types import Json, JsonObject, Malformed, Message, Role, ToolCall

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_TAG = re.compile(r"</?tool_call>")
_THINK = re.compile(r"^\s*(?:<think>)?(.*?)</think>", re.DOTALL)

TRUNCATED = Malformed(reason="truncated", detail="the completion reached its token limit before the turn ended")
"""What a completion is that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """Parts of one turn of the policy."""

    content: str
    """Text without thinking and calls."""
    reasoning: str | None
    calls: tuple[ToolCall | Malformed, ...]
    """Calls in the order of the text."""


def read_turn(text: str) -> TurnText:
    """Split a turn in the Hermes format: optional thinking, then text and ``<tool_call>`` blocks."""
    reasoning = None
    if thinking := _THINK.match(text):
        reasoning = thinking[1].strip()
        text = text[thinking.end() :]
    calls = [_parse_call(block) for block in _CALL.findall(text)]
    content = _CALL.sub("", text)
    if tag := _TAG.search(content):
        calls.append(Malformed(reason="malformed_call", detail=f"{tag[0]} without its partner"))
    return TurnText(content=content.strip(), reasoning=reasoning, calls=tuple(calls))


def parse_action(text: str, *, ended: bool) -> Message | Malformed:
    """Read one completion as an action; every call in it must be well formed.

    Args:
        text: Completion without its end-of-turn token.
        ended: Whether the policy ended its turn by itself; a turn that was cut off is not an action.
    """
    if not ended:
        return TRUNCATED
    turn = read_turn(text)
    calls: list[ToolCall] = []
    for call in turn.calls:
        if isinstance(call, Malformed):
            return call
        calls.append(call)
    return Message(role=Role.ASSISTANT, content=turn.content, reasoning=turn.reasoning, tool_calls=tuple(calls))


def _parse_call(block: str) -> ToolCall | Malformed:
    try:
        call: Json = json.loads(block, object_pairs_hook=_without_repeated_names)
    except (ValueError, RecursionError) as error:
        return Malformed(reason="malformed_call", detail=f"not JSON: {error}")
    if not isinstance(call, dict):
        return Malformed(reason="malformed_call", detail="a call must be a JSON object")
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return Malformed(reason="malformed_call", detail='a call needs "name" (text) and "arguments" (object)')
    return ToolCall(name=name, arguments=arguments)


def _without_repeated_names(pairs: list[tuple[str, Json]]) -> JsonObject:
    """The object of these pairs. A name given twice is refused: JSON readers differ in which value they take."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in an object")
    return values
