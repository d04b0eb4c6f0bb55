"""Verifier `tool_call`: an action equals the expert's if it calls the same tools with the same arguments."""

from collections.abc import Sequence

from verl_pivot.types import Json, Message, ToolCall, Turn, Verdict
from verl_pivot.verifiers.registry import register

ACCEPTED = Verdict(score=1.0, reason="accepted")


@register("tool_call")
async def tool_call(action: Message, turn: Turn) -> Verdict:
    """All or nothing: tool names, argument names, JSON types and values; order of parallel calls is free.

    A message turn accepts any message and refuses a call, and the reverse (PivotRL's call-against-talk
    rule for conversational tool use, section 4). Stricter than NVIDIA's public verifier, which pays half
    of the words of a text argument.
    """
    if not turn.expert.tool_calls:
        return _compare_message(action)
    if not action.tool_calls:
        return _refuse("message_instead_of_call", f"expected {_names(turn.expert.tool_calls)}")
    return _compare_calls(action.tool_calls, turn.expert.tool_calls)


def _compare_message(action: Message) -> Verdict:
    if action.tool_calls:
        return _refuse("call_instead_of_message", f"called {_names(action.tool_calls)}")
    return ACCEPTED if action.content else _refuse("empty_message", "neither a call nor text")


def _compare_calls(calls: Sequence[ToolCall], expected: Sequence[ToolCall]) -> Verdict:
    if len(calls) != len(expected):
        return _refuse("wrong_number_of_calls", f"{len(calls)} calls, expected {len(expected)}")
    left = list(calls)
    for wanted in expected:
        match = next((call for call in left if _difference(call, wanted) is None), None)
        if match is None:
            return _nearest_difference(left, wanted)
        left.remove(match)
    return ACCEPTED


def _nearest_difference(calls: Sequence[ToolCall], wanted: ToolCall) -> Verdict:
    """Why none of `calls` is the wanted one, told of a call of the same tool if there is one."""
    nearest = next((call for call in calls if call.name == wanted.name), calls[0])
    difference = _difference(nearest, wanted)
    assert difference is not None, nearest
    return difference


def _difference(call: ToolCall, wanted: ToolCall) -> Verdict | None:
    if call.name != wanted.name:
        return _refuse("wrong_tool", f"{call.name}, expected {wanted.name}")
    if missing := wanted.arguments.keys() - call.arguments.keys():
        return _refuse("missing_argument", f"{call.name}.{min(missing)}")
    if extra := call.arguments.keys() - wanted.arguments.keys():
        return _refuse("extra_argument", f"{call.name}.{min(extra)}")
    for name, value in wanted.arguments.items():
        if not equal(call.arguments[name], value):
            reason = "wrong_value" if _json_type(call.arguments[name]) == _json_type(value) else "wrong_type"
            return _refuse(reason, f"{call.name}.{name}: {call.arguments[name]!r}, expected {value!r}")
    return None


def equal(value: Json, other: Json) -> bool:
    """Equality of JSON values: 1 equals 1.0 (both are numbers) but neither true nor "1"."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(equal(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(equal, value, other))
    return _json_type(value) == _json_type(other) and value == other


def _json_type(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    return {int: "number", float: "number", str: "string", list: "array", dict: "object"}[type(value)]


def _names(calls: Sequence[ToolCall]) -> str:
    return ", ".join(call.name for call in calls)


def _refuse(reason: str, detail: str) -> Verdict:
    return Verdict(score=0.0, reason=reason, detail=detail)
