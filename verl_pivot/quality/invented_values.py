"""Trajectory -> identifiers in its calls that the assistant was never told."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from verl_pivot.data.json_values import encode_json
from verl_pivot.types import Json, Role, Trajectory

_MIN_CHARACTERS = 4
_SEPARATORS = re.compile(r"[\W_]+")


class InventedValue(NamedTuple):
    """Identifier in a call that no message before the call has."""

    turn: int
    """Position among the assistant's turns, from 0."""
    path: str
    """Argument as tool.argument, with further keys inside objects and without positions in lists."""
    value: str


def invented_values(trajectory: Trajectory, exempt: Sequence[str] = ()) -> list[InventedValue]:
    """Identifiers in calls that no system, user or tool message before the call has, each once.

    An identifier is text of four or more characters, without white space, with a letter and a digit. Dates, times and
    amounts have no letter and are not checked, as they may be computed. Case and separators are ignored, and values
    in the tools' schemas are known.

    Args:
        trajectory: Trajectory with or without tools.
        exempt: Paths such as "write_file.path" whose values the assistant may make up.
    """
    read = _MessagesRead(trajectory)
    found: dict[str, InventedValue] = {}
    turn = -1
    for position, message in enumerate(trajectory.messages):
        turn += message.role is Role.ASSISTANT
        for call in message.tool_calls:
            for path, value in _texts(call.arguments, call.name):
                is_new = path not in exempt and value not in found and _is_identifier(value)
                if is_new and not read.contain(value, before=position):
                    found[value] = InventedValue(turn, path, value)
    return list(found.values())


class _MessagesRead:
    """Messages to the assistant as one text, with the offset at which each message begins."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._tools = trajectory.tools
        texts = ["" if message.role is Role.ASSISTANT else message.content for message in trajectory.messages]
        self._texts = texts
        self._joined, self._starts = _joined(texts)
        self._without_separators: tuple[str, list[int]] | None = None

    def contain(self, value: str, *, before: int) -> bool:
        """Whether a message before this position has the value, or a tool's schema has it."""
        if self._joined.find(value.casefold(), 0, self._starts[before]) >= 0:
            return True
        if self._without_separators is None:
            self._without_separators = _joined([_SEPARATORS.sub("", text) for text in self._texts])
        joined, starts = self._without_separators
        if joined.find(_SEPARATORS.sub("", value).casefold(), 0, starts[before]) >= 0:
            return True
        return value in encode_json(list(self._tools))


def _joined(texts: list[str]) -> tuple[str, list[int]]:
    starts, end = [], 0
    folded = [text.casefold() + "\n" for text in texts]
    for text in folded:
        starts.append(end)
        end += len(text)
    return "".join(folded), starts


def _is_identifier(text: str) -> bool:
    if len(text) < _MIN_CHARACTERS or any(character.isspace() for character in text):
        return False
    return any(character.isalpha() for character in text) and any(character.isdigit() for character in text)


def _texts(value: Json, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _texts(child, f"{path}.{key}")
    elif isinstance(value, list):
        for child in value:
            yield from _texts(child, path)
