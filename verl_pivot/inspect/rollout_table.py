"""RolloutRow -> the table `rollouts` in a DuckDB of this process, which conditions may ask, but not leave."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow

from verl_pivot.errors import ConfigError, DataError
from verl_pivot.extras import extra
from verl_pivot.inspect.rollout_rows import RolloutRow

with extra("data"):
    import duckdb

MAX_SECONDS = 5.0
"""Seconds after which a query is ended."""
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
    """What the rows of one insertion share."""

    run: int
    """Number of the run, from 0."""
    part: str
    file: int
    """Number of the dump."""
    step: int | None
    """Step of rows that name none."""


class RowBatch(NamedTuple):
    """Rows of one dump."""

    origin: RowOrigin
    rows: Sequence[RolloutRow]
    groups: Sequence[int]
    """[num_rows] numbers of their groups."""


_ARROW_TYPES = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string(), bool: pyarrow.bool_()}
_SQL_TYPES = {
    pyarrow.uint32(): "UINTEGER",
    pyarrow.int64(): "BIGINT",
    pyarrow.float64(): "DOUBLE",
    pyarrow.string(): "VARCHAR",
    pyarrow.bool_(): "BOOLEAN",
}


def _schema() -> pyarrow.Schema:
    """Columns of the table: the place of a row among all, and its values, of a plain type, or of that and None."""
    columns = {"id": pyarrow.uint32(), "run": pyarrow.int64(), "part": pyarrow.string(), "file": pyarrow.int64()}
    columns["group_number"] = pyarrow.uint32()
    for name, kind in RolloutRow.__annotations__.items():
        plain = next(each for each in getattr(kind, "__args__", (kind,)) if each in _ARROW_TYPES)
        columns[name] = _ARROW_TYPES[plain]
    return pyarrow.schema(list(columns.items()))


_SCHEMA = _schema()
_ADDED = _SCHEMA.append(pyarrow.field("step_of_file", pyarrow.int64()))
COLUMNS: tuple[str, ...] = tuple(_SCHEMA.names)
"""Columns of the table, which a condition may use."""


class RolloutTable:
    """The table; each call may come from a thread of its own."""

    def __init__(self) -> None:
        self._database = duckdb.connect(config=LIMITS)
        columns = ", ".join(f"{field.name} {_SQL_TYPES[field.type]}" for field in _SCHEMA)
        self._database.execute(f"CREATE TABLE rollouts ({columns})")
        self._next_id = 0

    def add(self, batches: Sequence[RowBatch]) -> None:
        """Add rows at once, since each insertion takes milliseconds; their ids go on from those before."""
        if not batches:
            return
        rows = [row for batch in batches for row in batch.rows]
        shared = zip(*(batch.origin for batch in batches for _ in batch.rows), strict=True)
        run, part, file, step = shared
        groups = [group for batch in batches for group in batch.groups]
        ids = range(self._next_id, self._next_id + len(rows))
        columns = zip([ids, run, part, file, groups, *zip(*rows, strict=True), step], _ADDED, strict=True)
        table = pyarrow.table([pyarrow.array(values, field.type) for values, field in columns], schema=_ADDED)
        with self._database.cursor() as cursor:
            cursor.register("new_rows", table)
            cursor.execute(
                "INSERT INTO rollouts "
                "SELECT * EXCLUDE (step_of_file) REPLACE (coalesce(step, step_of_file) AS step) FROM new_rows"
            )
            cursor.unregister("new_rows")
        self._next_id += len(rows)

    def remove(self, file: int) -> None:
        """Take away the rows of a dump."""
        with self._database.cursor() as cursor:
            cursor.execute("DELETE FROM rollouts WHERE file = ?", [file])

    def ask(self, query: str, *values: Any) -> pyarrow.Table:
        """The answer to a query with a condition of the user's.

        Raises:
            ConfigError: If the condition is none, or takes too long.
        """
        try:
            return self._answer(query, values)
        except duckdb.InterruptException as error:
            raise ConfigError(
                f"the condition takes longer than {MAX_SECONDS:g} s: write one that looks at less"
            ) from error
        except duckdb.Error as error:
            raise ConfigError(f"the condition cannot be used: {str(error).partition(chr(10))[0]}") from error

    def count(self, query: str, *values: Any) -> pyarrow.Table:
        """The answer to a query that is ours alone, so that another error than these is a bug.

        Raises:
            DataError: If that takes longer, or more memory, than the table allows.
        """
        try:
            return self._answer(query, values)
        except (duckdb.InterruptException, duckdb.OutOfMemoryException) as error:
            raise DataError(
                f"the rollouts are too many to be counted within {MAX_SECONDS:g} s and {LIMITS['memory_limit']}: give "
                "fewer runs, or a dump of one step"
            ) from error

    def _answer(self, query: str, values: Sequence[Any]) -> pyarrow.Table:
        with self._database.cursor() as cursor:
            timer = threading.Timer(MAX_SECONDS, cursor.interrupt)
            timer.start()
            try:
                return cursor.sql(query, params=list(values)).to_arrow_table()
            finally:
                timer.cancel()
