"""Input files -> rows with their places; output files that are written completely or not at all."""

import errno
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow
import pyarrow.parquet

from verl_pivot.data.json_values import (
    BadRowError,
    as_object,
    decode_json,
)
from verl_pivot.data.output_place import output_place
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.extras import extra
from verl_pivot.types import JsonObject
from verl_pivot.validation import place_of

with extra("data"):
    import ijson
    from ijson.common import ObjectBuilder

_BATCH_ROWS = 256
_CHUNK_BYTES = 1 << 22
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}
_JSON = {".json", ".traj"}
_EVENT_BYTES = 8
"""Approximate bytes of a name, number, bracket or text of a JSON array, without the characters of names and texts."""
_BEGINS = {"start_array", "start_map"}
_ENDS = {"end_array", "end_map"}
_OF_ARRAYS = {"start_array", "end_array"}
_MAX_LEVELS = 1_000
"""Levels of nesting of a JSON array up to which its items are read; `json` allows about as many in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a row in a file, for messages.

    Example:
        Place(file="runs/shop.jsonl", unit="line", number=17)
    """

    file: str
    unit: Literal["line", "row", "item"]
    """"line" of a JSON lines file, "row" of a parquet file, or "item" of a JSON array."""
    number: int
    """Position in the file, from 1."""

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """One row of an input file before it is decoded."""

    place: Place
    raw: bytes | JsonObject
    """Bytes of a line, columns of a parquet row, or an item of a JSON array."""
    problem: str = ""
    """Why the row of a parquet file, or the item of an array, cannot be read; empty if it can."""
    approximate_bytes: int = 0
    """Approximate size in bytes of columns or an item; not used for a line."""

    @property
    def num_bytes(self) -> int:
        """Size of the row in bytes: exact for a line, approximate for any other row."""
        return len(self.raw) if isinstance(self.raw, bytes) else self.approximate_bytes

    def decoded(self) -> JsonObject:
        """The row as a JSON object.

        Raises:
            BadRowError: If the row is not a JSON object, or cannot be read.
        """
        if self.problem:
            raise BadRowError("unreadable_row", f"the row cannot be read: {self.problem}")
        return as_object(decode_json(self.raw) if isinstance(self.raw, bytes) else self.raw, "a row")


def read_rows(path: Path) -> Iterator[RawRow]:
    """Yield every row of a file, which holds JSON lines, a JSON array, one JSON object, or parquet.

    Blank lines are left out. JSON may be compressed (.gz, .bz2, .zst, .lz4). A row of a parquet file that cannot be
    read is given with its problem, as is each row of a part of the file that is damaged, and each item of an array
    that is nested too deeply.

    Raises:
        DataError: If the file is missing, empty or cannot be read.
    """
    check_file(path)
    number = 0
    try:
        for row in _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path):
            number = row.place.number
            yield row
    except (OSError, EOFError, UnicodeDecodeError, pyarrow.ArrowException, ijson.JSONError) as error:
        raise DataError(f"{path} cannot be read (after row {number}): {error}") from error
    if number == 0:
        raise DataError(f"{path} is empty; leave it out, or write it again")


def check_file(path: Path) -> None:
    """Refuse a file that is not there, a folder, and a pipe or a device, from which rows can be read only once.

    Raises:
        DataError: If the path is no file; the message says where a relative path was looked for.
    """
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the files in it, such as {path}/*.jsonl")
    if not path.exists():
        raise DataError(f"there is no file {path}{place_of(path)}; name files of JSON lines, JSON or parquet")
    if not path.is_file():
        raise DataError(f"{path} is a pipe or a device, but files are read more than once: write it to a file first")


def num_rows(path: Path) -> int | None:
    """Number of rows of a file, for a progress bar; None if the whole file would have to be parsed, or is no file."""
    try:
        if not path.is_file():  # reading it would take its rows away
            return None
        if path.suffix == ".parquet":
            return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
        if path.suffix in _COMPRESSED | _JSON:
            return None
        with path.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    except (OSError, pyarrow.ArrowException):
        return None


def in_chunks(rows: Iterable[RawRow], num_rows: int = 256) -> Iterator[tuple[RawRow, ...]]:
    """Group neighbouring rows as work for other processes: `num_rows` in a chunk, fewer where rows are large.

    Where a chunk ends depends only on the rows, so that a resumed job finds the same chunks.
    """
    chunk: list[RawRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += row.num_bytes
        if len(chunk) == num_rows or size > _CHUNK_BYTES:
            yield tuple(chunk)
            chunk, size = [], 0
    if chunk:
        yield tuple(chunk)


def _json_rows(path: Path) -> Iterator[RawRow]:
    with _opened(path) as file:
        kind = _kind_of_json(path, file)
        if kind == "array":
            yield from _array_items(path, file)
        elif kind == "object":
            yield RawRow(place=Place(file=str(path), unit="line", number=1), raw=file.read())
        else:
            for number, line in enumerate(file, start=1):
                if text := line.removeprefix(b"\xef\xbb\xbf").strip():
                    yield RawRow(place=Place(file=str(path), unit="line", number=number), raw=text)


_Peekable: TypeAlias = "io.BufferedReader[Any]"


def _array_items(path: Path, file: _Peekable) -> Iterator[RawRow]:
    """Items of a JSON array. Of an item that is nested too deeply, only the levels that are allowed are built.

    `ijson.items` would keep the path to each level as text, whose size grows with the square of the levels.
    """
    builder, number, depth, size, too_deep = ObjectBuilder(), 0, 0, 0, False
    for event, value in ijson.basic_parse(file, use_float=True):
        depth += event in _BEGINS
        size += _EVENT_BYTES + (len(value) if isinstance(value, str) else 0)
        is_of_array = depth == 1 and event in _OF_ARRAYS
        if depth > _MAX_LEVELS:
            too_deep = True
        elif not is_of_array:
            builder.event(event, value)
        depth -= event in _ENDS
        if depth == 1 and not is_of_array:
            number += 1
            place = Place(file=str(path), unit="item", number=number)
            problem = "nested too deeply" if too_deep else ""
            raw = {} if problem else builder.value
            yield RawRow(place=place, raw=raw, problem=problem, approximate_bytes=size)
            builder, size, too_deep = ObjectBuilder(), 0, False


@contextmanager
def _opened(path: Path) -> Iterator[_Peekable]:
    if path.suffix in _COMPRESSED:
        path.stat()  # raises a clearer error for a missing file than pyarrow does
        with io.BufferedReader(pyarrow.input_stream(str(path), compression="detect"), 1 << 20) as file:
            yield file
    else:
        with io.BufferedReader(path.open("rb", buffering=0), 1 << 16) as file:
            yield file


def _kind_of_json(path: Path, file: _Peekable) -> Literal["array", "object", "lines"]:
    """Kind of JSON in a file. Only .json and .traj files may be an array or one object; their first bytes decide."""
    suffixes = {suffix for suffix in path.suffixes if suffix not in _COMPRESSED}
    if not suffixes & _JSON:
        return "lines"
    begin = file.peek(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    if begin.startswith(b"["):
        return "array"
    first_line, newline, _ = begin.partition(b"\n")
    try:
        json.loads(first_line)
    except ValueError:
        return "object" if newline else "lines"
    except RecursionError:  # a line that is nested too deeply, which is rejected where it is decoded
        return "lines"
    return "lines"


_UNREADABLE = (OSError, ValueError, pyarrow.ArrowException)
"""Errors that reading a damaged part of a parquet file raises; text that is not UTF-8 raises a ValueError."""


def _parquet_rows(path: Path) -> Iterator[RawRow]:
    file = pyarrow.parquet.ParquetFile(path)
    number = 0
    for group in range(file.num_row_groups):
        end = number + file.metadata.row_group(group).num_rows
        try:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group]):
                for row in _batch_rows(path, batch, number):
                    number = row.place.number
                    yield row
        except _UNREADABLE as error:
            for lost in range(number + 1, end + 1):
                yield RawRow(place=Place(file=str(path), unit="row", number=lost), raw={}, problem=str(error))
        number = end


def _batch_rows(path: Path, batch: pyarrow.RecordBatch, num_before: int) -> Iterator[RawRow]:
    try:
        rows = [(columns, "") for columns in batch.to_pylist()]
    except _UNREADABLE:
        rows = [_single_row(batch.slice(index, 1)) for index in range(batch.num_rows)]
    size = batch.nbytes // max(1, batch.num_rows)
    for number, (columns, problem) in enumerate(rows, start=num_before + 1):
        place = Place(file=str(path), unit="row", number=number)
        yield RawRow(place=place, raw=columns, problem=problem, approximate_bytes=size)


def _single_row(batch: pyarrow.RecordBatch) -> tuple[JsonObject, str]:
    """Columns of the only row, and why it cannot be read; "" if it can."""
    try:
        return batch.to_pylist()[0], ""
    except _UNREADABLE as error:
        return {}, str(error)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Path of a temporary file that becomes `path` when the block succeeds and is removed when the block fails.

    Raises:
        ConfigError: If the file cannot be written (full disk, no permission), or `path` is a folder or a device; an
            older file at `path` stays.
    """
    place = output_place(path)
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        make_folder(place.parent)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(place)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        _remove(temporary)


def unwritable(path: Path, error: Exception, then: str = "or choose another --out") -> ConfigError:
    """The error for an output that cannot be written; `then` is the second half of the remedy."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"{path} cannot be written: {why}; free some space there, {then} (existing files are unchanged)")


def make_folder(path: Path) -> None:
    """Make a folder and its parents if they do not exist.

    Raises:
        NotADirectoryError: If there is a file of that name.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is a file, not a folder") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # the folder does not exist or is read-only, so there is nothing to remove
        return
