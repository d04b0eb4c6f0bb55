"""The tables of a selection in a DuckDB file, filled chunk by chunk; they may be larger than memory."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow

from verl_pivot.extras import extra
from verl_pivot.selection.candidates import CANDIDATES
from verl_pivot.selection.profile_table import PROFILES

with extra("data"):
    import duckdb


_MEMORY_LIMIT = "1GB"


@contextmanager
def open_tables(folder: Path, *, threads: int) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the database with the tables `candidates` and `profiles`, as far as an interrupted run has filled them.

    Raises:
        OSError: If the file cannot be read or written, for example because the disk is full.
    """
    try:
        with duckdb.connect(str(folder / "tables.duckdb")) as database:
            database.execute(f"set memory_limit = '{_MEMORY_LIMIT}'")
            database.execute(f"set threads = {threads}")
            database.execute("set preserve_insertion_order = false")
            create_tables(database)
            yield database
    except (duckdb.IOException, duckdb.OutOfMemoryException, duckdb.FatalException) as error:
        raise OSError(str(error)) from error


def create_tables(database: duckdb.DuckDBPyConnection) -> None:
    """Create the tables that are missing, empty."""
    for name, schema in (("candidates", CANDIDATES), ("profiles", PROFILES)):
        empty = schema.empty_table()
        database.execute(f"create table if not exists {name} as from empty")
        del empty
    database.execute(
        "create table if not exists progress (name text primary key, num_tables integer, num_rows integer)"
    )


def fill_table(
    database: duckdb.DuckDBPyConnection,
    name: str,
    chunks_after: Callable[[int], Iterable[pyarrow.Table]],
    on_rows: Callable[[int], object],
) -> None:
    """Add the chunks of rows that an interrupted run has not added, each in a transaction of its own.

    Args:
        database: Database from `open_tables`.
        name: Name of the table.
        chunks_after: Function that gets the number of chunks already in the table, and gives the chunks after them. The
            sequence of chunks must be the same in every run.
        on_rows: Called with the number of rows that are new in the table; the first call counts the rows that an
            interrupted run added.
    """
    found = database.execute("select num_tables, num_rows from progress where name = ?", (name,)).fetchone()
    num_tables, num_rows = found or (0, 0)
    on_rows(num_rows)
    for rows in chunks_after(num_tables):
        num_tables, num_rows = num_tables + 1, num_rows + rows.num_rows
        database.execute("begin")
        database.execute(f"insert into {name} from rows")
        database.execute("insert or replace into progress values (?, ?, ?)", (name, num_tables, num_rows))
        database.execute("commit")
        on_rows(rows.num_rows)
