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
        DataError: If a column has values of different types, which parquet cannot hold.
    """
    schema: pyarrow.Schema | None = None
    try:
        for rows in _groups(lines):
            found = pyarrow.Table.from_pylist(rows).schema
            schema = found if schema is None else pyarrow.unify_schemas([schema, found], promote_options="permissive")
        if schema is None:
            out.touch()
            return
        with pyarrow.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
            for rows in _groups(lines):
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{out.name} cannot be written because a column has different types in different tasks: {error}; make the "
            "column text in each row of --tasks"
        ) from error


def _groups(lines: Path) -> Iterator[list[JsonObject]]:
    with lines.open("rb") as file:
        while group := [_row(msgspec.json.decode(line)) for line in islice(file, _ROWS_PER_GROUP)]:
            yield group


def _row(columns: JsonObject) -> JsonObject:
    return {name: _cell(name, value) for name, value in columns.items()}


def _cell(name: str, value: Json) -> Json:
    return encode_json(value) if isinstance(value, list | dict) and name not in _NESTED else value
