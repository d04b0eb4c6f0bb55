"""Texts of a tools file with placeholders such as `{metadata.seed}` -> the same texts with the values of a row."""

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote

from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import DataError
from verl_pivot.types import JsonObject

FOLDER = "{folder}"
"""Placeholder for the session's own folder."""
_PLACE = re.compile(r"\{folder\}|\{metadata\.([\w-]+)\}")
_LIKE_PLACE = re.compile(r"\{[A-Za-z_][\w.-]*\}")
_MAX_BYTES = 100_000
"""Most bytes of a value; Linux accepts arguments and environment variables of at most 131,072 bytes."""
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?([eE][+-]?\d+)?")


class SplitText(NamedTuple):
    """A text, split before its first placeholder."""

    path: str
    """The whole text if it has no placeholder; otherwise the folders before the first placeholder, or ""."""
    rest: str


def check_places(text: str) -> None:
    """Refuse a text with an unknown placeholder, which would not be replaced.

    Raises:
        ValueError: If there is one; the message names it.
    """
    for found in _LIKE_PLACE.findall(text):
        if not _PLACE.fullmatch(found):
            raise ValueError(
                f"unknown placeholder {found}; known are {FOLDER} and {{metadata.NAME}}, a value of the row"
            )


def row_names(texts: Iterable[str]) -> set[str]:
    """Names of the row's values for which texts have placeholders."""
    return {match[1] for text in texts for match in _PLACE.finditer(text) if match[1]}


def split_at_place(text: str) -> SplitText:
    """Split a text after the last slash before its first placeholder."""
    found = _PLACE.search(text)
    end = len(text) if found is None else text.rfind("/", 0, found.start()) + 1
    return SplitText(text[:end], text[end:])


def filled(text: str, metadata: JsonObject, *, folder: str = "") -> str:
    """The text with the values of a row; a value that is a text is inserted unchanged, any other as JSON.

    Args:
        text: A text whose placeholders have been checked.
        metadata: The row's column `metadata`, decoded.
        folder: Folder of the session.

    Raises:
        DataError: If the row lacks a value, or a value cannot be part of an argument of a program.
    """
    return _PLACE.sub(lambda match: _value(match[1], metadata) if match[1] else folder, text)


def filled_word(text: str, metadata: JsonObject, *, folder: str) -> str:
    """An argument of a program with the values of a row, which cannot turn it into an option.

    Raises:
        DataError: As in `filled`; also if the argument would become an option.
    """
    word = filled(text, metadata, folder=folder)
    if word.startswith("-") and not text.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(word):
        raise DataError(
            f"the value of {text} must not begin with a dash, since the program would take it for an option; in the "
            f"tools file write option and value as one argument, as in --option={text}"
        )
    return word


def filled_url(text: str, metadata: JsonObject) -> str:
    """An address with the values of a row, percent-encoded, so that no value changes another part of the address.

    Raises:
        DataError: As in `filled`; also if a value is `.` or `..`.
    """
    return _PLACE.sub(lambda match: quote(_part(match[1], metadata), safe=""), text)


def _part(name: str, metadata: JsonObject) -> str:
    value = _value(name, metadata)
    if value in (".", ".."):
        raise DataError(f"metadata.{name} must not be {value!r} in an address")
    return value


def _value(name: str, metadata: JsonObject) -> str:
    value = metadata.get(name)
    if value is None:
        known = ", ".join(metadata) or "nothing"
        raise DataError(
            f"the row lacks metadata.{name}, for which the tools file has a placeholder; its metadata holds {known}"
        )
    text = encode_json(value)  # refuses what UTF-8 cannot hold
    text = value if isinstance(value, str) else text
    if "\0" in text:
        raise DataError(f"metadata.{name} holds a null character, which an argument of a program cannot have")
    if (num_bytes := len(text.encode())) > _MAX_BYTES:
        raise DataError(
            f"metadata.{name} has {num_bytes} bytes, but an argument of a program at most {_MAX_BYTES}; put it into a "
            "file of the row's folder, which `folder_from` names"
        )
    return text
