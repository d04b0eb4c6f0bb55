"""verifiers.sql_order: expressions of a query that ask for the time of day."""

import pytest
import sqlglot

from verl_pivot.verifiers.sql_order import clock_in


@pytest.mark.parametrize(
    ("dialect", "expression", "has_clock"),
    [
        *(("sqlite", text, True) for text in ("datetime()", "time()", "julianday()", "unixepoch()")),
        *(("sqlite", text, True) for text in ("unixepoch('subsec')", "strftime('%H')", "strftime('%H', 'NOW')")),
        *(("sqlite", text, True) for text in ("datetime('now', 'localtime')", "current_time")),
        *(("sqlite", text, False) for text in ("datetime(day)", "unixepoch(day)", "date('now')", "date()")),
        *(("duckdb", text, True) for text in ("localtimestamp", "current_localtimestamp()", "localtime", "now()")),
        *(("duckdb", text, True) for text in ("current_localtime()", "transaction_timestamp()", "'now'::TIMESTAMP")),
        *(("duckdb", text, True) for text in ("get_current_timestamp()", "uuidv7()")),
        *(("duckdb", text, False) for text in ("current_date", "today()", "day::TIMESTAMP")),
    ],
)
def test_a_clock_is_found_and_the_day_is_none(dialect: str, expression: str, has_clock: bool) -> None:
    query = sqlglot.parse_one(f"SELECT {expression} FROM orders", dialect=dialect)

    assert bool(clock_in(query)) == has_clock
