"""Trajectory -> identifiers in its calls that nobody told the assistant."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from verl_pivot.data.json_values import encode_json
from verl_pivot.types import Json, Role, Trajectory

_MIN_CHARACTERS = 4
_SEPARATORS = re.compile(r"[\W_]+")


class InventedValue(NamedTuple):
    turn: int
    """Among the assistant's, from 0."""
    path: str
    """tool.argument, without the positions in lists."""
    value: str


def invented_values(trajectory: Trajectory, exempt: Sequence[str] = ()) -> list[InventedValue]:
    """Each identifier once, where a call has it and no system, user or tool message before that has it.

    An identifier is text of four or more characters, without white space, with a letter and a digit. Dates, times,
    amounts and sums have no letter and are no identifiers, as they may be derived. Case and separators do not count,
    and a value that the tools' schemas name is known.

    Args:
        trajectory: With or without tools.
        exempt: Paths such as "write_file.path" whose values the assistant may make up.
    """
    told = _Told(trajectory)
    found: dict[str, InventedValue] = {}
    turn = -1
    for position, message in enumerate(trajectory.messages):
        turn += message.role is Role.ASSISTANT
        for call in message.tool_calls:
            for path, value in _texts(call.arguments, call.name):
                is_new = path not in exempt and value not in found and _is_identifier(value)
                if is_new and not told.before(position, value):
                    found[value] = InventedValue(turn, path, value)
    return list(found.values())


class _Told:
    """What the assistant was told, as one text with the place where each message begins."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._tools = trajectory.tools
        texts = ["" if message.role is Role.ASSISTANT else message.content for message in trajectory.messages]
        self._texts = texts
        self._all, self._starts = _joined(texts)
        self._bare: tuple[str, list[int]] | None = None

    def before(self, position: int, value: str) -> bool:
        if self._all.find(value.casefold(), 0, self._starts[position]) >= 0:
            return True
        if self._bare is None:
            self._bare = _joined([_SEPARATORS.sub("", text) for text in self._texts])
        bare, starts = self._bare
        if bare.find(_SEPARATORS.sub("", value).casefold(), 0, starts[position]) >= 0:
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
