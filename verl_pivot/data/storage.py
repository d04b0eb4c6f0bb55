"""Files -> rows with their places, and outputs that appear whole or not at all."""

import errno
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import ijson
import pyarrow
import pyarrow.parquet

from verl_pivot.errors import ConfigError, DataError
from verl_pivot.types import Json, JsonObject

_BATCH_ROWS = 256
_CHUNK_BYTES = 1 << 22
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}
_JSON = {".json", ".traj"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a row stands in a file.

    Example:
        Place(file="runs/shop.jsonl", unit="line", number=17)
    """

    file: str
    unit: Literal["line", "row", "item"]
    """A line of JSON lines, a row of parquet, an item of a JSON array."""
    number: int
    """From 1."""

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


class BadRowError(DataError):
    """One row breaks its format; `reason` is the code that it is counted under."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRow:
    """One row of an input file, not yet looked into."""

    place: Place
    raw: bytes | JsonObject
    """A line, the columns of a parquet row, or an item of an array."""

    def decoded(self) -> JsonObject:
        """The row as an object.

        Raises:
            BadRowError: If the line is none.
        """
        return as_object(decode_json(self.raw) if isinstance(self.raw, bytes) else self.raw, "a row")


def read_rows(path: Path) -> Iterator[RawRow]:
    """Every row of a file: JSON lines, a JSON array, one JSON object, or parquet; blank lines are none.

    JSON may be compressed (.gz, .bz2, .zst, .lz4).

    Raises:
        DataError: If the file is missing, empty or cannot be read.
    """
    number = 0
    try:
        for row in _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path):
            number = row.place.number
            yield row
    except (OSError, EOFError, pyarrow.ArrowException, ijson.JSONError) as error:
        raise DataError(f"{path} cannot be read (after row {number}): {error}") from error
    if number == 0:
        raise DataError(f"{path} is empty; leave it out, or write it again")


def num_rows(path: Path) -> int | None:
    """Rows of a file for a progress bar; None where only reading it would tell."""
    try:
        if path.suffix == ".parquet":
            return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
        if path.suffix in _COMPRESSED | _JSON:
            return None
        with path.open("rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
    except (OSError, pyarrow.ArrowException):
        return None


def in_chunks(rows: Iterable[RawRow], num_rows: int = 256) -> Iterator[tuple[RawRow, ...]]:
    """Neighbouring rows together, as work for another process; fewer than `num_rows` where they are large.

    Where a chunk ends depends on the rows alone, so that a job that goes on finds the same ones.
    """
    chunk: list[RawRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.raw) if isinstance(row.raw, bytes) else 0
        if len(chunk) == num_rows or size > _CHUNK_BYTES:
            yield tuple(chunk)
            chunk, size = [], 0
    if chunk:
        yield tuple(chunk)


def _json_rows(path: Path) -> Iterator[RawRow]:
    with _opened(path) as file:
        kind = _kind_of_json(path, file)
        if kind == "array":
            for number, item in enumerate(ijson.items(file, "item", use_float=True), start=1):
                yield RawRow(place=Place(file=str(path), unit="item", number=number), raw=item)
        elif kind == "object":
            yield RawRow(place=Place(file=str(path), unit="line", number=1), raw=file.read())
        else:
            for number, line in enumerate(file, start=1):
                if text := line.removeprefix(b"\xef\xbb\xbf").strip():
                    yield RawRow(place=Place(file=str(path), unit="line", number=number), raw=text)


_Peekable: TypeAlias = "io.BufferedReader[Any]"


@contextmanager
def _opened(path: Path) -> Iterator[_Peekable]:
    if path.suffix in _COMPRESSED:
        path.stat()  # pyarrow says less of a missing file
        with io.BufferedReader(pyarrow.input_stream(str(path), compression="detect"), 1 << 20) as file:
            yield file
    else:
        with io.BufferedReader(path.open("rb", buffering=0), 1 << 16) as file:
            yield file


def _kind_of_json(path: Path, file: _Peekable) -> Literal["array", "object", "lines"]:
    """By the first bytes of a file that is called .json or .traj; others, and logs that are misnamed, are lines."""
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
    return "lines"


def _parquet_rows(path: Path) -> Iterator[RawRow]:
    number = 0
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=_BATCH_ROWS):
        for columns in batch.to_pylist():
            number += 1
            yield RawRow(place=Place(file=str(path), unit="row", number=number), raw=columns)


def decode_json(text: str | bytes, *, reason: str = "not_json", what: str = "the row") -> Json:
    """JSON text in UTF-8, without NaN and infinities.

    Raises:
        BadRowError: If it is anything else; `reason` and `what` tell where.
    """
    try:
        value: Json = _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError as error:
        raise BadRowError(reason, f"{what}: nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError and a number with too many digits
        raise BadRowError(reason, f"{what}: not JSON: {error}") from error
    return value


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is no JSON value")


# Made once: json.dumps and json.loads would make one for each value.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_SORTING_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True)


def encode_json(value: Json, *, sort_keys: bool = False) -> str:
    """One line of JSON that every reader takes: no NaN, and text that UTF-8 can hold.

    Raises:
        BadRowError: If the value has no such form.
    """
    try:
        text = (_SORTING_ENCODER if sort_keys else _ENCODER).encode(value)
        text.encode()
    except RecursionError as error:
        raise BadRowError("not_json", "nested too deeply") from error
    except (TypeError, ValueError) as error:  # not a JSON type, NaN, or a lone surrogate
        raise BadRowError("not_json", f"a value has no JSON form: {error}") from error
    return text


def as_object(value: Json, what: str) -> JsonObject:
    """`value` if it is an object.

    Raises:
        BadRowError: If not.
    """
    if not isinstance(value, dict):
        raise BadRowError("not_an_object", f"{what} must be a JSON object, got {kind_of(value)}")
    return value


def as_list(value: Json, what: str) -> list[Json]:
    """`value` if it is a list; none is an empty one.

    Raises:
        BadRowError: If it is anything else.
    """
    if value is not None and not isinstance(value, list):
        raise BadRowError("not_a_list", f"{what} must be a JSON list, got {kind_of(value)}")
    return value or []


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, dict) else type(value).__name__)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that takes its place when the block succeeds and goes when it fails.

    Raises:
        ConfigError: If it cannot be written (full disk, no permission); what stood at `path` before stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        make_folder(path.parent)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        _remove(temporary)


def unwritable(path: Path, error: Exception, then: str = "or choose another --out") -> ConfigError:
    """What to say where an output cannot be written, and what to do about it."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(
        f"{path} cannot be written: {why}; free some space there, {then} "
        "(nothing that was there before has been changed)"
    )


def make_folder(path: Path) -> None:
    """Make a folder and its parents, where they are not there.

    Raises:
        NotADirectoryError: If a file of that name is in the way.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is a file, not a folder") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # its folder never came to be, or is read-only: there is nothing to remove
        return
