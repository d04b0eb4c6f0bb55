"""Rule of the Berkeley Function-Calling Leaderboard: every argument of a call is one of its listed values.

The row's `accepted` holds one object per call of the expert: {tool: {argument: [value, ...]}}. An empty text in a list
means that the argument may be left out; it is not an accepted value itself. If an accepted value is an object, each of
its keys has such a list in turn. Unlike the leaderboard's checker, this rule accepts 1.0 for 1. It accepts neither an
empty text for an argument that may be left out, nor texts that differ in case, spaces or punctuation.
"""

from collections.abc import Mapping, Set

from verl_pivot.data.json_values import equal
from verl_pivot.types import Json, JsonObject, ToolCall

_LEFT_OUT = ""


def is_accepted(call: ToolCall, accepted: JsonObject, required: Set[str]) -> bool:
    """Whether an object of accepted values, for one call, allows `call`.

    Args:
        call: The policy's call.
        accepted: {tool: {argument: [value, ...]}}.
        required: Arguments that the tool's schema requires; they may not be left out.
    """
    (name, arguments), *_ = accepted.items()
    return call.name == name and required <= call.arguments.keys() and _allows_object(arguments, call.arguments)


def is_broken(accepted: JsonObject) -> bool:
    """Whether an object of accepted values is invalid.

    It is if it does not name exactly one tool, if an argument or a key on any level has no list of values or an empty
    one, or if a value is NaN, which equals nothing.
    """
    if len(accepted) != 1:
        return True
    (arguments,) = accepted.values()
    return not isinstance(arguments, dict) or not _lists_values(arguments)


def _lists_values(accepted: JsonObject) -> bool:
    return all(isinstance(values, list) and values and all(map(_is_usable, values)) for values in accepted.values())


def _is_usable(value: Json) -> bool:
    if isinstance(value, dict):
        return _lists_values(value)
    return all(map(_is_usable, value)) if isinstance(value, list) else value == value


def _allows_object(accepted: Json, actual: Mapping[str, Json]) -> bool:
    if not isinstance(accepted, dict) or actual.keys() - accepted.keys():
        return False
    return all(
        _allows_any(values, actual[name]) if name in actual else isinstance(values, list) and _LEFT_OUT in values
        for name, values in accepted.items()
    )


def _allows_any(values: Json, actual: Json) -> bool:
    assert isinstance(values, list), values
    return any(_allows(value, actual) for value in values if value != _LEFT_OUT)


def _allows(accepted: Json, actual: Json) -> bool:
    if isinstance(accepted, dict):
        return isinstance(actual, dict) and _allows_object(accepted, actual)
    if isinstance(accepted, list):
        return isinstance(actual, list) and len(actual) == len(accepted) and all(map(_allows, accepted, actual))
    return equal(actual, accepted)
