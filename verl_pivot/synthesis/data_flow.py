"""Recorded trajectories -> FieldEdges: a call's arguments have a value from the result of an earlier call."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from verl_pivot.data.answered_calls import answered_calls
from verl_pivot.data.json_values import BadRowError, decode_json, encode_json
from verl_pivot.synthesis.tool_graph import EdgeOrigin, FieldEdge
from verl_pivot.types import Json, JsonObject, Message, Role, Trajectory

MIN_CALLS = 2
"""Number of recorded calls that an edge needs, because a single match may be by chance."""

_MIN_CHARACTERS = 3
_MIN_NUMBER = 10
_NAME = re.compile(r"[^\W\d]+(-[^\W\d]+)*\d?")

Scalar: TypeAlias = str | int | float


class FieldValue(NamedTuple):
    """One value in a result or in arguments, with its path of keys, written as in `FieldEdge`."""

    path: str
    value: Scalar


def mined_edges(trajectories: Iterable[Trajectory], *, min_calls: int = MIN_CALLS) -> list[FieldEdge]:
    """The edges between fields that recorded trajectories show, in alphabetical order.

    A value counts if a call's arguments have it, the result of an earlier call has it, and the caller cannot have it
    from elsewhere: no earlier message of the user or the system has it, and no tool schema. A result does not count as
    the source of a value that was among the arguments of its own call. Texts of fewer than three characters and
    numbers below 10 do not count, because they occur everywhere.

    Args:
        trajectories: Recorded trajectories, whose results are JSON or text.
        min_calls: Number of recorded calls that an edge needs.
    """
    seen: Counter[tuple[str, str, str, str]] = Counter()
    for trajectory in trajectories:
        seen.update(_flow(trajectory))
    return [
        FieldEdge(*ends, EdgeOrigin.RECORDED, num_calls)
        for ends, num_calls in sorted(seen.items())
        if num_calls >= min_calls
    ]


def _flow(trajectory: Trajectory) -> Iterator[tuple[str, str, str, str]]:
    """Yield (source tool, result path, target tool, argument path) of each passed value, once per receiving call."""
    calls = answered_calls(trajectory.messages)
    said = _Said(trajectory)
    held: dict[Scalar, set[tuple[str, str]]] = defaultdict(set)
    read = 0
    for answered in calls:
        while calls[read].position < answered.position:  # parallel calls do not read each other's results
            earlier = calls[read]
            told = {value for _, value in argument_values(earlier.call.arguments)}
            for path, value in fields_of_result(earlier.result):
                if value not in told:
                    held[value].add((earlier.call.name, path))
            read += 1
        yield from {
            (*source, answered.call.name, path)
            for path, value in argument_values(answered.call.arguments)
            if _may_pass(value) and value in held and not said.has(value, before=answered.position)
            for source in held[value]
        }


class _Said:
    """Texts that the caller knows without the tools' results, up to a position of the conversation."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._texts = [encode_json(list(trajectory.tools)).casefold()]
        self._messages = trajectory.messages
        self._position = 0

    def has(self, value: Scalar, *, before: int) -> bool:
        """Whether a tool schema, or a message of the user or the system before this position, contains a value."""
        for message in self._messages[self._position : before]:
            if message.role in (Role.SYSTEM, Role.USER):
                self._texts.append(message.content.casefold())
        self._position = max(self._position, before)
        text = str(value).casefold()
        return any(text in each for each in self._texts)


def fields_of_result(result: Message | None) -> list[FieldValue]:
    """The values in a call's result that may count; a result that is no JSON is one text with the path ""."""
    return [] if result is None else [each for each in scalars(result_value(result.content)) if _may_pass(each.value)]


def result_value(result: str) -> Json:
    """The JSON value in the text of a result, or the text itself if it is no JSON."""
    try:
        return decode_json(result)
    except BadRowError:
        return result


def argument_values(arguments: JsonObject) -> list[FieldValue]:
    """Texts and numbers in a call's arguments; arguments whose name contains a dot are left out."""
    return [
        FieldValue(f"{name}.{path}".rstrip("."), value)
        for name, argument in arguments.items()
        if "." not in name
        for path, value in scalars(argument)
    ]


def scalars(value: Json) -> list[FieldValue]:
    """Texts and numbers within a JSON value, and keys that are data, such as the ids in an object {id: record}."""
    found, left = [], [("", value)]
    while left:
        path, inner = left.pop()
        if isinstance(inner, dict):
            for key, child in inner.items():
                names_field = is_name(key)
                place = f"{path}.{key if names_field else '*'}".lstrip(".")
                if not names_field:
                    found.append(FieldValue(place, key))
                left.append((place, child))
        elif isinstance(inner, list):
            left += [(path, child) for child in inner]
        elif isinstance(inner, Scalar) and not isinstance(inner, bool):
            found.append(FieldValue(path, inner))
    return found


@lru_cache(maxsize=4096)
def is_name(key: str) -> bool:
    """Whether a key is the name of a field; a key with spaces, other signs or more than a final digit is data."""
    return _NAME.fullmatch(key) is not None


def _may_pass(value: Scalar) -> bool:
    return len(value) >= _MIN_CHARACTERS if isinstance(value, str) else abs(value) >= _MIN_NUMBER
