"""Two texts of a call's arguments -> whether they spell the same date, path or member of an enum, or say the same."""

import re
from datetime import datetime

from rapidfuzz import fuzz

from verl_pivot.types import Json
from verl_pivot.verifiers.telling_words import have_same_sense

_DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%B %d, %Y", "%b %d, %Y", "%B %d %Y", "%b %d %Y", "%d %B %Y", "%d %b %Y")
"""Date formats in which day and month cannot be confused."""
_ISO = re.compile(r"\d{4}-?\d{2}-?\d{2}(?:[Tt ]\d{2}(?::?\d{2}){0,2}(?:\.\d+)?(?:[Zz]|[+-]\d{2}:?\d{2})?)?")
_DAY_FIRST = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
_ORDINAL = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)\b")
_MANY_SLASHES = re.compile(r"/+")


def is_same_date(text: str, other: str) -> bool:
    """Whether both texts spell the same date, or the same date and time."""
    return (date := _date(text)) is not None and date == _date(other)


def is_same_path(text: str, other: str) -> bool:
    """Whether two paths differ only in parts that no file system looks at: "a//b", "a/./b" and "a/b/" are "a/b".

    "a/../b" is not "b", since a may be a symbolic link; a text with "://" is an address, not a path.
    """
    return bool(text) and bool(other) and _path(text) == _path(other)


def is_same_member(text: str, other: str, members: list[Json]) -> bool:
    """Whether both texts spell the same member of an enum, and no other, up to case and surrounding space."""
    return (member := _member(text, members)) is not None and member == _member(other, members)


def is_same_prose(text: str, other: str, min_similarity: float) -> bool:
    """Whether two texts are similar and have the same sense: numbers, names, contraries and number of negations.

    Args:
        text: A text in any case and with any spaces.
        other: The text to compare it with.
        min_similarity: Smallest normalised edit similarity, in [0, 1].
    """
    if not text.strip() or not have_same_sense(text, other):
        return False
    return fuzz.ratio(" ".join(text.casefold().split()), " ".join(other.casefold().split())) / 100.0 >= min_similarity


def _member(text: str, members: list[Json]) -> str | None:
    spelling = text.strip().lower()
    texts = [each for each in members if isinstance(each, str) and each.isascii() == text.isascii()]  # U+212A is no k
    found = [each for each in texts if each.strip().lower() == spelling]
    return found[0] if len(found) == 1 else None


def _path(path: str) -> str:
    if "://" in path:
        return path
    if path.startswith(("./~", "./-")):  # a file name that would otherwise be a home folder or a flag
        return f"./{_path(path[2:])}"
    root = "//" if path.startswith("//") and not path.startswith("///") else "/" if path.startswith("/") else ""
    return root + "/".join(part for part in _MANY_SLASHES.split(path) if part not in ("", "."))


def _date(text: str) -> datetime | None:
    """The date that a text spells; None if it spells no date, or day and month cannot be told apart."""
    text = _ORDINAL.sub(r"\1", text.strip())
    if not text.isascii():
        return None
    if _ISO.fullmatch(text):
        return _parsed(text, None)
    if numbers := _DAY_FIRST.fullmatch(text):
        is_clear = int(numbers[1]) > 12 or int(numbers[1]) == int(numbers[2])
        return _parsed(text, "%d.%m.%Y") if is_clear else None
    return next((date for each in _DATE_FORMATS if (date := _parsed(text, each)) is not None), None)


def _parsed(text: str, date_format: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text.upper()) if date_format is None else datetime.strptime(text, date_format)
    except ValueError:
        return None
