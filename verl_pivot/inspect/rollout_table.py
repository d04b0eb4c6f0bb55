"""RolloutRow -> the table `rollouts` in a DuckDB of this process; conditions read it, and reach nothing outside."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy
import pyarrow
import pyarrow.compute

from verl_pivot.errors import ConfigError, DataError
from verl_pivot.extras import extra
from verl_pivot.inspect.rollout_rows import RolloutRow

with extra("data"):
    import duckdb

MAX_SECONDS = 5.0
"""Seconds after which a query of a view is ended, since a person waits for the answer."""
LIMITS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "memory_limit": "2GB",
    "threads": 2,
    "lock_configuration": True,
}
"""Settings under which a condition of the user's reaches neither files nor Python nor the network."""


class RowOrigin(NamedTuple):
    """Values that the rows of one insertion share."""

    run: int
    """Number of the run, from 0."""
    part: str
    file: int
    """Number of the dump."""
    step: int | None
    """Step of rows that name none."""


_ARROW_TYPES = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
_SQL_TYPES = {
    pyarrow.uint32(): "UINTEGER",
    pyarrow.int64(): "BIGINT",
    pyarrow.float64(): "DOUBLE",
    pyarrow.string(): "VARCHAR",
    pyarrow.bool_(): "BOOLEAN",
}


def _schema() -> pyarrow.Schema:
    """Columns of the table: the origin of a row, and the fields of RolloutRow, whose types may allow None."""
    columns = {"id": pyarrow.uint32(), "run": pyarrow.int64(), "part": pyarrow.string(), "file": pyarrow.int64()}
    columns["group_number"] = pyarrow.uint32()
    for name, kind in RolloutRow.__annotations__.items():
        plain = next(each for each in getattr(kind, "__args__", (kind,)) if each in _ARROW_TYPES)
        columns[name] = _ARROW_TYPES[plain]
    return pyarrow.schema(list(columns.items()))


_SCHEMA = _schema()
_ROW_SCHEMA = _SCHEMA.remove(0)
COLUMNS: tuple[str, ...] = tuple(_SCHEMA.names)
"""Columns of the table, which a condition may use."""


def row_batch(origin: RowOrigin, columns: Mapping[str, Sequence[Any]], groups: Sequence[int]) -> pyarrow.RecordBatch:
    """Rows of one dump as the table takes them.

    Args:
        origin: Values that the rows share.
        columns: {name of a value of RolloutRow: [num_rows] values}.
        groups: [num_rows] numbers of their groups.
    """
    values = {"group_number": groups, **columns}
    arrays = {name: pyarrow.array(each, _SCHEMA.field(name).type) for name, each in values.items()}
    for name, value in (("run", origin.run), ("part", origin.part), ("file", origin.file)):
        arrays[name] = pyarrow.repeat(pyarrow.scalar(value, _SCHEMA.field(name).type), len(groups))
    if origin.step is not None:
        arrays["step"] = pyarrow.compute.fill_null(arrays["step"], origin.step)
    return pyarrow.RecordBatch.from_pydict(arrays, schema=_ROW_SCHEMA)


class RolloutTable:
    """The table `rollouts`; its methods may be called from several threads."""

    def __init__(self, max_seconds: float | None = None) -> None:
        """Create an empty table.

        Args:
            max_seconds: Seconds after which a query is ended; None takes `MAX_SECONDS`.
        """
        self._own_seconds = max_seconds
        self._database = duckdb.connect(config=LIMITS)
        columns = ", ".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in _SCHEMA)
        self._database.execute(f"CREATE TABLE rollouts ({columns})")
        self._next_id = 0

    def add(self, batches: Sequence[pyarrow.RecordBatch]) -> None:
        """Add all rows in one insertion, since each insertion takes 20 ms; their ids continue those before.

        Args:
            batches: Rows of dumps (`row_batch`).

        Raises:
            DataError: If they take more memory than the table allows; the rows before stay.
        """
        if not batches:
            return
        rows = pyarrow.Table.from_batches(batches)
        end = self._next_id + len(rows)
        ids = pyarrow.array(numpy.arange(self._next_id, end, dtype=numpy.uint32))
        with self._database.cursor() as cursor:
            cursor.register("new_rows", rows.add_column(0, _SCHEMA.field("id"), ids))
            try:
                cursor.execute("INSERT INTO rollouts SELECT * FROM new_rows")
            except duckdb.OutOfMemoryException as error:
                raise DataError(
                    f"there are too many rollouts for {LIMITS['memory_limit']} of memory, so only the first "
                    f"{self._next_id:,} that were read are shown: give fewer runs, or a dump of one step"
                ) from error
            finally:
                cursor.unregister("new_rows")
        self._next_id = end

    def remove(self, file: int) -> None:
        """Take away the rows of a dump."""
        with self._database.cursor() as cursor:
            cursor.execute("DELETE FROM rollouts WHERE file = ?", [file])

    def ask(self, query: str, *values: Any) -> pyarrow.Table:
        """The answer to a query with a condition of the user's.

        Raises:
            ConfigError: If the condition is not valid, or takes too long.
        """
        try:
            return self._answer(query, values)
        except duckdb.InterruptException as error:
            raise ConfigError(
                f"the condition takes longer than {self._max_seconds:g} s: write a simpler one, or add a filter"
            ) from error
        except duckdb.Error as error:
            raise ConfigError(f"the condition cannot be used: {str(error).partition(chr(10))[0]}") from error

    def count(self, query: str, *values: Any) -> pyarrow.Table:
        """The answer to a query without a condition of the user's, so that any other error is a bug.

        Raises:
            DataError: If that takes longer, or more memory, than the table allows.
        """
        try:
            return self._answer(query, values)
        except (duckdb.InterruptException, duckdb.OutOfMemoryException) as error:
            raise DataError(
                f"there are too many rollouts to count within {self._max_seconds:g} s and {LIMITS['memory_limit']} of "
                "memory: give fewer runs, or a dump of one step"
            ) from error

    @property
    def _max_seconds(self) -> float:
        return MAX_SECONDS if self._own_seconds is None else self._own_seconds

    def _answer(self, query: str, values: Sequence[Any]) -> pyarrow.Table:
        with self._database.cursor() as cursor:
            timer = threading.Timer(self._max_seconds, cursor.interrupt)
            timer.start()
            try:
                return cursor.sql(query, params=list(values)).to_arrow_table()
            finally:
                timer.cancel()
