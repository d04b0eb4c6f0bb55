"""Texts of a tools file with places such as `{metadata.seed}` -> the same texts with the values of a row."""

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject

FOLDER = "{folder}"
"""Place of the folder that a session has of its own."""
_PLACE = re.compile(r"\{folder\}|\{metadata\.([\w-]+)\}")
_LIKE_PLACE = re.compile(r"\{[A-Za-z_][\w.-]*\}")
_MAX_BYTES = 100_000
"""Bytes of a value; Linux takes arguments and variables of at most 131,072."""
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?")


class SplitText(NamedTuple):
    """A text, split so that all its places stand behind."""

    path: str
    """The whole text if it has no place; else the folders that it names before its first place, "" for none."""
    rest: str


def check_places(text: str) -> None:
    """Refuse a text with a place that does not exist, which a program would be given as it stands.

    Raises:
        ValueError: Naming the place.
    """
    for found in _LIKE_PLACE.findall(text):
        if not _PLACE.fullmatch(found):
            raise ValueError(
                f"there is no place {found}; places are {FOLDER} and {{metadata.NAME}}, a value of the row"
            )


def row_names(texts: Iterable[str]) -> set[str]:
    """Names of the values of a row that texts have places for."""
    return {match[1] for text in texts for match in _PLACE.finditer(text) if match[1]}


def split_at_place(text: str) -> SplitText:
    """Split a text behind the last slash before its first place."""
    found = _PLACE.search(text)
    end = len(text) if found is None else text.rfind("/", 0, found.start()) + 1
    return SplitText(text[:end], text[end:])


def filled(text: str, metadata: JsonObject, *, folder: str = "") -> str:
    """The text with the values of a row, each as it stands if it is a text, and else as JSON.

    Args:
        text: A text whose places have been checked.
        metadata: The row's column `metadata`, decoded.
        folder: Folder of the session.

    Raises:
        DataError: If the row lacks a value, or a value cannot stand in an argument of a program.
    """
    return _PLACE.sub(lambda match: _value(match[1], metadata) if match[1] else folder, text)


def filled_word(text: str, metadata: JsonObject, *, folder: str) -> str:
    """An argument of a program with the values of a row; none of these can make an option of it.

    Raises:
        DataError: As `filled` does; if the argument becomes an option, too.
    """
    word = filled(text, metadata, folder=folder)
    if word.startswith("-") and not text.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(word):
        raise DataError(
            f"the value of {text} must not begin with a dash, since the program would take it for an option; in the "
            f"tools file write it into the word of its own option, as in --option={text}"
        )
    return word


def filled_url(text: str, metadata: JsonObject) -> str:
    """An address with the values of a row, percent-encoded, so that none reaches into another part of it.

    Raises:
        DataError: As `filled` does; if a value is `.` or `..`, too.
    """
    return _PLACE.sub(lambda match: quote(_part(match[1], metadata), safe=""), text)


def _part(name: str, metadata: JsonObject) -> str:
    value = _value(name, metadata)
    if value in (".", ".."):
        raise DataError(f"metadata.{name} must be no {value!r} in an address")
    return value


def _value(name: str, metadata: JsonObject) -> str:
    value = metadata.get(name)
    if value is None:
        known = ", ".join(metadata) or "nothing"
        raise DataError(
            f"the row lacks metadata.{name}, for which the tools file has a place; its metadata holds {known}"
        )
    text = encode_json(value)  # refuses what UTF-8 cannot hold
    text = value if isinstance(value, str) else text
    if "\0" in text:
        raise DataError(f"metadata.{name} holds a null character, which no argument of a program can have")
    if (num_bytes := len(text.encode())) > _MAX_BYTES:
        raise DataError(
            f"metadata.{name} has {num_bytes} bytes, and an argument of a program at most {_MAX_BYTES}; put it into a "
            "file of the row's folder, which `folder_from` names"
        )
    return text
