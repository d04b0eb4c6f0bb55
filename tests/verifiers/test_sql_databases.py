"""verifiers.sql on databases of every kind: each expert is accepted, and a query with written-down rows is not."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.factories import make_turn
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.sandbox.execution import Program
from verl_pivot.types import JsonObject, Message, Role, Verdict
from verl_pivot.verifiers import sql
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.sql import SqlOptions, sql_program

pytestmark = needs_sandbox


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def judge(query: str, expert: str, script: str, **options: object) -> Verdict:
    def block(text: str) -> Message:
        return Message(role=Role.ASSISTANT, content=f"```sql\n{text}\n```")

    settings: JsonObject = {"scripts": [script], "wall_seconds": 10.0, "max_rows": 1000, **options}  # type: ignore[dict-item]
    return await get_verifier("sql", settings)(block(query), make_turn(expert=block(expert)))


FAMILY = """
CREATE TABLE parents (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE children (id INTEGER PRIMARY KEY, parent_id INTEGER REFERENCES parents (id), age INTEGER);
INSERT INTO parents VALUES (1, 'Ann'), (2, 'Bob'), (3, 'Cem');
INSERT INTO children VALUES (1, 1, 4), (2, 1, 7), (3, 2, 9), (4, 3, 1);
"""
GENERATED = """
CREATE TABLE goods (id INTEGER PRIMARY KEY, price INTEGER, amount INTEGER, total INTEGER AS (price * amount));
INSERT INTO goods (id, price, amount) VALUES (1, 2, 3), (2, 5, 1), (3, 7, 2), (4, 1, 1);
"""
# name -> (dialects, script, expert's query, a query with the expert's rows written into it)
DATABASES = {
    "foreign keys": (
        ("sqlite", "duckdb"),
        FAMILY,
        "SELECT name, age FROM parents JOIN children ON parent_id = parents.id WHERE age > 3",
        "VALUES ('Ann', 4), ('Ann', 7), ('Bob', 9)",
    ),
    "generated columns": (
        ("sqlite", "duckdb"),
        GENERATED,
        "SELECT id, total FROM goods",
        "VALUES (1, 6), (2, 5), (3, 14), (4, 1)",
    ),
    "one row": (
        ("sqlite", "duckdb"),
        "CREATE TABLE settings (level INTEGER); INSERT INTO settings VALUES (5);",
        "SELECT level FROM settings",
        "SELECT 5",
    ),
    "one row with a text as its key": (
        ("sqlite", "duckdb"),
        "CREATE TABLE settings (owner TEXT PRIMARY KEY, mode TEXT); INSERT INTO settings VALUES ('a', 'b');",
        "SELECT owner, mode FROM settings",
        "SELECT 'a', 'b'",
    ),
    "one row of text": (
        ("sqlite", "duckdb"),
        "CREATE TABLE settings (owner TEXT); INSERT INTO settings VALUES ('Ann');",
        "SELECT owner FROM settings",
        "SELECT 'Ann'",
    ),
    "constraints": (
        ("sqlite", "duckdb"),
        "CREATE TABLE rooms (number INTEGER NOT NULL UNIQUE, size INTEGER CHECK (size > 0), kind TEXT NOT NULL);"
        "INSERT INTO rooms VALUES (1, 20, 'a'), (2, 15, 'b'), (3, 12, 'a'), (4, 30, 'b');",
        "SELECT number, size FROM rooms WHERE kind = 'a'",
        "VALUES (1, 20), (3, 12)",
    ),
    "a view": (
        ("sqlite", "duckdb"),
        FAMILY + "CREATE VIEW grown AS SELECT * FROM children WHERE age > 3;",
        "SELECT id, age FROM grown",
        "VALUES (1, 4), (2, 7), (3, 9)",
    ),
    "names in quotes": (
        ("sqlite", "duckdb"),
        'CREATE TABLE "order list" ("the id" INTEGER PRIMARY KEY, "group" INTEGER);'
        'INSERT INTO "order list" VALUES (1, 5), (2, 6), (3, 7);',
        'SELECT "group" FROM "order list"',
        "VALUES (5), (6), (7)",
    ),
    "no rowid": (
        ("sqlite",),
        "CREATE TABLE t (code TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID; INSERT INTO t VALUES ('a', 2), ('b', 3);",
        "SELECT n FROM t",
        "VALUES (2), (3)",
    ),
    "full-text search": (
        ("sqlite",),
        "CREATE VIRTUAL TABLE notes USING fts5 (title, body);"
        "INSERT INTO notes VALUES ('one', 'red fox'), ('two', 'red dog'), ('three', 'cat'), ('four', 'red cat');",
        "SELECT title FROM notes WHERE notes MATCH 'red'",
        "VALUES ('one'), ('two'), ('four')",
    ),
    "a trigger": (
        ("sqlite",),
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER); CREATE TABLE log (n INTEGER);"
        "INSERT INTO t VALUES (1, 2), (2, 4), (3, 8);"
        "CREATE TRIGGER noted AFTER DELETE ON t BEGIN INSERT INTO log VALUES (old.n); END;",
        "SELECT n FROM t",
        "VALUES (2), (4), (8)",
    ),
    "a trigger that forbids": (
        ("sqlite",),
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO t VALUES (1, 2), (2, 4), (3, 8), (4, 16);"
        "CREATE TRIGGER small BEFORE INSERT ON t WHEN new.n > 8 BEGIN SELECT RAISE(ABORT, 'too much'); END;",
        "SELECT n FROM t",
        "VALUES (2), (4), (8), (16)",
    ),
    "a loop of foreign keys": (
        ("sqlite",),
        "CREATE TABLE a (id INTEGER PRIMARY KEY, b_id INTEGER REFERENCES b (id));"
        "CREATE TABLE b (id INTEGER PRIMARY KEY, a_id INTEGER REFERENCES a (id));"
        "INSERT INTO a VALUES (1, 1), (2, 2), (3, 1); INSERT INTO b VALUES (1, 1), (2, 3);",
        "SELECT a.id, b.id FROM a JOIN b ON b_id = b.id",
        "VALUES (1, 1), (2, 2), (3, 1)",
    ),
    "lists and structures": (
        ("duckdb",),
        "CREATE TABLE t (id INTEGER, tags VARCHAR[], place STRUCT(x INTEGER, y INTEGER), kind ENUM ('a', 'b'));"
        "INSERT INTO t VALUES (1, ['r', 's'], {'x': 1, 'y': 2}, 'a'), (2, [], {'x': 3, 'y': 4}, 'b'),"
        "(3, ['t'], {'x': 5, 'y': 6}, 'a');",
        "SELECT tags, place, kind FROM t",
        "VALUES (['r', 's'], {'x': 1, 'y': 2}, 'a'), ([], {'x': 3, 'y': 4}, 'b'), (['t'], {'x': 5, 'y': 6}, 'a')",
    ),
    "decimals and dates": (
        ("duckdb",),
        "CREATE TABLE t (price DECIMAL(18, 2), day DATE, moment TIMESTAMP);"
        "INSERT INTO t VALUES (10.50, '2024-05-01', '2024-05-01 10:00:00'), (20, '2024-06-01', '2024-06-02 10:00:00'),"
        "(7.25, '2023-01-01', NULL);",
        "SELECT price, day, moment FROM t",
        "VALUES (10.50, DATE '2024-05-01', TIMESTAMP '2024-05-01 10:00:00'), "
        "(20, DATE '2024-06-01', TIMESTAMP '2024-06-02 10:00:00'), (7.25, DATE '2023-01-01', NULL)",
    ),
}
CASES = [
    pytest.param(dialect, *rest, id=f"{name}, {dialect}")
    for name, (dialects, *rest) in DATABASES.items()
    for dialect in dialects
]


@pytest.mark.parametrize(("dialect", "script", "expert", "written"), CASES)
async def test_the_expert_is_accepted_and_its_rows_written_down_are_not(
    dialect: str, script: str, expert: str, written: str
) -> None:
    right = await judge(f"{expert} -- as asked", expert, script, dialect=dialect)
    wrong = await judge(written, expert, script, dialect=dialect)
    unperturbed = await judge(written, expert, script, dialect=dialect, num_perturbed=0)

    assert (right.score, right.reason) == (1.0, "accepted"), right.detail
    assert (wrong.score, wrong.reason) == (0.0, "wrong_rows"), wrong.detail
    assert unperturbed.score == 1.0, unperturbed.detail


NUMBERS = "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER, x DOUBLE, word TEXT);" + "".join(
    f"INSERT INTO t VALUES ({n}, {n % 7}, {n / 10}, '{'abc'[n % 3]}');" for n in range(1, 25)
)


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
@pytest.mark.parametrize(
    ("expert", "query"),
    [
        ("SELECT count(*) FROM t", "SELECT count(n) FROM t"),
        ("SELECT word FROM t", "SELECT DISTINCT word FROM t"),
        ("SELECT avg(n) FROM t", "SELECT sum(n) * 1.0 / count(*) FROM t"),
        ("SELECT id FROM t WHERE n IS NULL OR n > 3", "SELECT id FROM t WHERE n > 3"),
        ("SELECT id + 1000000000 FROM t", "SELECT id + 1000000001 FROM t"),
        ("SELECT sum(n) FROM t", "SELECT sum(DISTINCT n) FROM t"),
        ("SELECT max(n) FROM t", "SELECT 6"),
        ("SELECT count(*) FROM t", "SELECT 24"),
        ("SELECT id FROM t ORDER BY n LIMIT 3", "SELECT id FROM t ORDER BY n DESC LIMIT 3"),
        ("SELECT id FROM t ORDER BY n LIMIT 3", "SELECT id FROM t ORDER BY n LIMIT 3 OFFSET 3"),
        ("SELECT id, n FROM t ORDER BY n", "SELECT id, n FROM t ORDER BY n DESC"),
        ("SELECT id, n FROM t ORDER BY n", "SELECT id, n FROM t"),
    ],
)
async def test_a_query_that_agrees_only_by_chance_is_refused(dialect: str, expert: str, query: str) -> None:
    verdict = await judge(query, expert, NUMBERS, dialect=dialect)

    assert (verdict.score, verdict.reason) == (0.0, "wrong_rows"), verdict.detail


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
@pytest.mark.parametrize(
    ("expert", "query"),
    [
        ("SELECT id + 1000000 FROM t", "SELECT id + 1000000 FROM t ORDER BY id DESC"),
        ("SELECT id, n FROM t ORDER BY n", "SELECT id, n FROM t ORDER BY n, id DESC"),
        ("SELECT id FROM t ORDER BY n", "SELECT id FROM t ORDER BY n, id DESC"),
        ("SELECT id FROM t ORDER BY n LIMIT 2", "SELECT id FROM t ORDER BY n, id DESC LIMIT 2"),
        (
            "SELECT id, n AS m FROM t ORDER BY m LIMIT 4 OFFSET 1",
            "SELECT id, n FROM t ORDER BY n, -id LIMIT 4 OFFSET 1",
        ),
        ("SELECT id, n FROM t ORDER BY 2, 1", "SELECT id, n FROM t ORDER BY n, id"),
        (
            "SELECT word, count(*) FROM t GROUP BY word ORDER BY count(*)",
            "SELECT word, count(*) c FROM t GROUP BY 1 ORDER BY c",
        ),
        ("SELECT n FROM t LIMIT 3", "SELECT n FROM t ORDER BY id DESC LIMIT 3"),
        ("SELECT DISTINCT n FROM t ORDER BY n LIMIT 2", "SELECT n FROM t GROUP BY n ORDER BY n LIMIT 2"),
        ("SELECT id FROM t UNION SELECT n FROM t ORDER BY id", "SELECT n FROM t UNION SELECT id FROM t ORDER BY 1"),
        ("SELECT sum(x) FROM t", "SELECT sum(y) FROM (SELECT x AS y FROM t ORDER BY id DESC)"),
        ("SELECT sum(x) FROM t", "SELECT sum(x * 10) / 10 FROM t"),
    ],
)
async def test_ties_and_rounding_do_not_matter(dialect: str, expert: str, query: str) -> None:
    verdict = await judge(query, expert, NUMBERS, dialect=dialect)

    assert (verdict.score, verdict.reason) == (1.0, "accepted"), verdict.detail


@pytest.mark.parametrize(
    ("dialect", "expert", "detail"),
    [
        ("sqlite", "SELECT random() FROM t", "when it is run again"),
        ("sqlite", "SELECT id FROM t ORDER BY random() LIMIT 3", "when it is run again"),
        ("duckdb", "SELECT random() FROM t", "when it is run again"),
        ("duckdb", "SELECT gen_random_uuid() FROM t", "when it is run again"),
        ("sqlite", "SELECT id, current_timestamp FROM t", "depends on the current time"),
        ("sqlite", "SELECT datetime('now') FROM t", "depends on the current time"),
        ("sqlite", "SELECT strftime('%s', 'now') - n FROM t", "depends on the current time"),
        ("duckdb", "SELECT now() FROM t", "depends on the current time"),
    ],
)
async def test_an_expert_that_gives_other_rows_each_time_is_undecided(dialect: str, expert: str, detail: str) -> None:
    verdict = await judge(expert, expert, NUMBERS, dialect=dialect)

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
    assert detail in verdict.detail


FEW = "CREATE TABLE e (id INTEGER PRIMARY KEY, amount DOUBLE, age INTEGER, name TEXT, day DATE);" + "".join(
    f"INSERT INTO e VALUES ({n}, {n + 0.5}, {30 + n}, 'Ann', '2024-05-0{n}');" for n in range(1, 6)
)


@pytest.mark.parametrize("dialect", ["sqlite", "duckdb"])
@pytest.mark.parametrize("column", ["amount", "age", "name", "day"])
@pytest.mark.parametrize("seed", [0, 2, 3])
async def test_rows_are_not_counted_by_a_column_that_may_be_null(dialect: str, column: str, seed: int) -> None:
    verdict = await judge(f"SELECT count({column}) FROM e", "SELECT count(*) FROM e", FEW, dialect=dialect, seed=seed)

    assert (verdict.score, verdict.reason) == (0.0, "wrong_rows"), verdict.detail


INVALID = "CREATE TABLE t (id INTEGER, word TEXT);" + "".join(
    f"INSERT INTO t VALUES ({n}, CAST(x'61ff' AS TEXT));" for n in range(3)
)


@pytest.mark.parametrize("word", [r"'a\xff'", r"'a\udcff'", "'aÿ'", "x'61ff'", "'a�'"])
async def test_text_that_is_no_utf_8_equals_itself_and_nothing_that_is_written_like_it(word: str) -> None:
    expert = "SELECT word FROM t"

    same = await judge(f"{expert} WHERE 1 = 1", expert, INVALID)
    other = await judge(f"SELECT {word} FROM t", expert, INVALID, num_perturbed=0)

    assert (same.score, same.reason) == (1.0, "accepted"), same.detail
    assert (other.score, other.reason) == (0.0, "wrong_rows"), other.detail


def hurried(asked: list[Sequence[str]]) -> Callable[..., Program]:
    """sql_program that gives queries of the policy no time, and notes what is asked."""

    def program(options: SqlOptions, queries: Sequence[str], **settings: Any) -> Program:
        asked.append(queries)
        found = sql_program(options, queries, **settings)
        if settings.get("is_expert"):
            return found
        return replace(found, code="while True: pass", limits=replace(found.limits, wall_seconds=0.2))

    return program


async def test_databases_that_take_too_long_to_make_are_no_fault_of_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the program of the expert is given all the time that it needs, and those of a query none."""
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(sql, "sql_program", hurried(asked))
    query, other = "SELECT n FROM t", "SELECT n + 0 FROM t"

    for text in (query, other, other):
        verdict = await judge(text, query, "CREATE TABLE t (n INTEGER); INSERT INTO t VALUES (1), (2);")
        assert (verdict.score, verdict.reason) == (None, "gold_time_limit")
        assert "takes more than 10 s; give more wall_seconds" in verdict.detail
    assert len(asked) == 5  # three queries of the policy, and once each the expert's rows and its time


async def test_a_query_too_large_to_send_is_refused_and_does_not_make_the_row_undecided(tmp_path: object) -> None:
    import sqlite3
    from pathlib import Path

    path = Path(str(tmp_path)) / "large.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(NUMBERS)
        connection.execute("CREATE TABLE filler AS SELECT randomblob(7500000) AS data")
    expert = "SELECT n FROM t"
    long_query = f"{expert} -- " + "\U0001f600" * 250_000
    options = {"scripts": [], "databases": [str(path)], "num_perturbed": 0}

    assert (await judge(f"{expert} --", expert, "", **options)).score == 1.0
    verdict = await judge(long_query, expert, "", **options)
    assert (verdict.score, verdict.reason) == (0.0, "too_long")


@pytest.mark.heavy
async def test_queries_that_come_at_the_same_time_get_the_verdicts_that_each_gets_alone() -> None:
    """DuckDB's queries run in one program: no query may see another's settings, or end another."""
    expert = "SELECT id, n FROM t WHERE n > 1"
    queries = {
        expert: "accepted",
        "SELECT id, n FROM t WHERE NOT n <= 1": "accepted",
        "SELECT setseed(0.5) FROM t": "wrong_rows",
        "SELECT id, n FROM t WHERE setseed(0.5) IS NULL AND random() < 2 AND n > 1": "accepted",
        "SELECT id FROM nowhere": "runtime_error",
        "SET schema = 'x'": "runtime_error",
        "SELECT 1; SELECT 2": "runtime_error",
        "DROP TABLE t": "runtime_error",
        "WITH gone AS (DELETE FROM t RETURNING id) SELECT id, id FROM gone": "runtime_error",
        "SELECT id, n FROM t WHERE n > (SELECT count(*) FROM range(4000000) a, range(4000000) b)": "time_limit",
        "SELECT id, repeat('x', 2000000000) FROM t": "runtime_error",
        f"{expert} -- behind all others": "accepted",
    }

    together = await asyncio.gather(
        *(judge(query, expert, NUMBERS, dialect="duckdb", wall_seconds=2.0) for query in queries)
    )
    alone = [await judge(query, expert, NUMBERS, dialect="duckdb", wall_seconds=2.0) for query in queries]

    assert [verdict.reason for verdict in together] == [verdict.reason for verdict in alone]
    assert dict(zip(queries, (verdict.reason for verdict in alone), strict=True)) == queries
