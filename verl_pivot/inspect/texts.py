"""Places of rollouts in dumps -> their lines as JSON objects, and the rollouts whose texts hold given words."""

import json
import math
import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from verl_pivot.data.rollout_dumps import place_in_dump
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.types import Json, JsonObject

_SCANNED_BYTES = 16 << 20
"""Number of bytes that are read and searched at a time; a map of a file that is cut short would end the process."""
_FEWEST_LETTERS = 3
"""Minimum length of a part of the words that is searched for in the bytes; otherwise every rollout is decoded."""


class RowPlace(NamedTuple):
    """Place of a rollout's lines in its dump."""

    id: int
    path: Path
    byte_offset: int
    num_bytes: int


def read_lines(place: RowPlace) -> list[JsonObject]:
    """[num_parts] the lines of a rollout in the order of its parts, with None for numbers that JSON does not have.

    Earlier versions wrote part 10 before part 2.

    Raises:
        DataError: If they cannot be read, or the dump was replaced.
    """
    try:
        with place.path.open("rb") as file:
            file.seek(place.byte_offset)
            lines = _parsed(file.read(place.num_bytes))
    except OSError as error:
        raise DataError(
            f"{place.path} cannot be read: {error.strerror}; its rollouts are listed, but not shown"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place.path} was replaced since it was read: wait until it is read again") from error
    return sorted(lines, key=lambda line: place_in_dump(str(line.get("uid"))))


def line_with_record(lines: Sequence[JsonObject]) -> JsonObject:
    """The line of a rollout that has its record; the last one in dumps without records.

    Args:
        lines: [num_parts] lines of the rollout, as `read_lines` gives them.
    """
    return next((line for line in reversed(lines) if line.get("stop_reason") is not None), lines[-1])


def _parsed(data: bytes) -> list[JsonObject]:
    lines = [
        json.loads(line.decode(), parse_constant=lambda _: None, parse_float=_finite)
        for line in data.split(b"\n")
        if line.strip()
    ]
    if not lines or not all(isinstance(line, dict) for line in lines):
        raise ValueError("no JSON objects")
    return lines


def _finite(text: str) -> float | None:
    """The number, or None for one such as 1e999, which Python reads as infinite."""
    number = float(text)
    return number if math.isfinite(number) else None


def rows_with_words(places: Sequence[RowPlace], words: str, max_seconds: float) -> list[int]:
    """Ids of the rollouts that hold the words in one of their texts, without regard to upper and lower case.

    Args:
        places: The rollouts to look at, by file and offset.
        words: Words that a text must hold exactly as given, except for case.
        max_seconds: Seconds after which the search is given up.

    Raises:
        ConfigError: If the search takes longer.
        DataError: If a dump cannot be read.
    """
    end = time.monotonic() + max_seconds
    part = max(re.findall(r"[A-Za-z0-9 ]+", words), key=len, default="").lower().encode()
    found = []
    for path, of_file in groupby(places, key=lambda place: place.path):
        try:
            with path.open("rb") as file:
                for batch in _batches(of_file):
                    begin, last = batch[0].byte_offset, batch[-1]
                    data = os.pread(file.fileno(), last.byte_offset + last.num_bytes - begin, begin)
                    for place in _candidates(data, batch, part):
                        _refuse_after(end, max_seconds)
                        at = place.byte_offset - begin
                        if _holds(data[at : at + place.num_bytes], words.casefold()):
                            found.append(place.id)
                    _refuse_after(end, max_seconds)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}; exclude its step with a filter") from error
    return found


def _refuse_after(end: float, max_seconds: float) -> None:
    if time.monotonic() > end:
        raise ConfigError(f"the search for words takes longer than {max_seconds:g} s: first filter the list")


def _candidates(data: bytes, batch: list[RowPlace], part: bytes) -> Iterator[RowPlace]:
    """Rollouts whose bytes hold a part of the words.

    Args:
        data: Bytes of the dump from the first of the rollouts to the last.
        batch: [num_rollouts] the rollouts, by offset.
        part: The longest part of the words that JSON writes without escapes, in lower case.
    """
    if len(part) < _FEWEST_LETTERS:
        yield from batch
        return
    text = data.lower()
    offsets = [place.byte_offset - batch[0].byte_offset for place in batch]
    index, at = -1, text.find(part)
    while at >= 0:
        index = bisect_right(offsets, at, lo=index + 1) - 1
        if at < offsets[index] + batch[index].num_bytes:  # else it stands in a rollout that is not asked for
            yield batch[index]
        at = text.find(part, offsets[index + 1]) if index + 1 < len(batch) else -1


def _batches(places: Iterable[RowPlace]) -> Iterator[list[RowPlace]]:
    """Neighbouring rollouts whose lines are read at once."""
    batch: list[RowPlace] = []
    for place in places:
        if batch and place.byte_offset + place.num_bytes - batch[0].byte_offset > _SCANNED_BYTES:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _holds(data: bytes, folded: str) -> bool:
    try:
        lines: list[Json] = [msgspec.json.decode(line) for line in data.split(b"\n") if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            lines = [*_parsed(data)]
        except (ValueError, RecursionError):  # no longer what it was when it was listed
            return False
    return any(folded in text.casefold() for line in lines for text in _texts(line))


def _texts(value: Json) -> Iterator[str]:
    """Every text of a JSON value, but no key."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)
