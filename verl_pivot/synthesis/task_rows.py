"""Lines of tasks -> tasks.parquet: rows for `+method=tool_rollout`; each row has the columns of all tasks."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
import pyarrow
import pyarrow.parquet

from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject

_ROWS_PER_GROUP = 512
_NESTED = frozenset({"prompt", "reward_model", "extra_info"})
"""Columns that verl reads as lists and objects; lists and objects in other columns are written as JSON text."""


def write_tasks(lines: Path, out: Path) -> None:
    """Write the parquet file, one row group at a time; if there are no lines, the file is empty.

    Raises:
        DataError: If a column has values of different types, or a number beyond 64 bits, which parquet cannot hold.
    """
    types = _column_types(lines, out)
    if not types:
        out.touch()
        return
    schema = pyarrow.schema(types)
    with pyarrow.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for rows in _groups(lines):
            arrays = [_column(name, rows, out, found) for name, found in types.items()]
            writer.write_table(pyarrow.table(arrays, schema=schema))


def _column_types(lines: Path, out: Path) -> dict[str, pyarrow.DataType]:
    """{column: type that holds its values in all tasks}, in the order of their first tasks."""
    types: dict[str, pyarrow.DataType] = {}
    for rows in _groups(lines):
        for name in dict.fromkeys(name for row in rows for name in row):
            found = _column(name, rows, out).type
            types[name] = _common_type(name, types.get(name, found), found, out)
    return types


def _column(name: str, rows: list[JsonObject], out: Path, of_type: pyarrow.DataType | None = None) -> pyarrow.Array:
    """[num_rows] values of a column, of the given type or of one that fits; null where a row does not have it."""
    try:
        return pyarrow.array([row.get(name) for row in rows], type=of_type)
    except (pyarrow.ArrowException, OverflowError) as error:
        raise _unwritable(name, out, error) from error


def _common_type(name: str, one: pyarrow.DataType, other: pyarrow.DataType, out: Path) -> pyarrow.DataType:
    schemas = [pyarrow.schema({name: each}) for each in (one, other)]
    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field(name).type
    except pyarrow.ArrowException as error:
        raise _unwritable(name, out, error) from error


def _unwritable(name: str, out: Path, error: Exception) -> DataError:
    return DataError(
        f"{out.name} cannot be written because column {name} has different types in different tasks, or a number "
        f"beyond 64 bits ({error}); make the column text in each row of --tasks"
    )


def _groups(lines: Path) -> Iterator[list[JsonObject]]:
    with lines.open("rb") as file:
        while group := [_row(msgspec.json.decode(line)) for line in islice(file, _ROWS_PER_GROUP)]:
            yield group


def _row(columns: JsonObject) -> JsonObject:
    return {name: _cell(name, value) for name, value in columns.items()}


def _cell(name: str, value: Json) -> Json:
    if name in _NESTED:
        return _without_empty_objects(value)
    return encode_json(value) if isinstance(value, list | dict) else value


def _without_empty_objects(value: Json) -> Json:
    """The value with null for each object without keys, for which parquet has no type."""
    if isinstance(value, dict):
        return {key: _without_empty_objects(child) for key, child in value.items()} or None
    return [_without_empty_objects(child) for child in value] if isinstance(value, list) else value
