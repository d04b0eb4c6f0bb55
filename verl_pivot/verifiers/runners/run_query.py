"""Runs in the sandbox: runs one query on copies of several databases, as they are and altered -> rows or errors.

plan.json: {"dialect", "query", "sources": [script | null], "num_perturbed", "seed", "max_rows"}; where a source is null
the database is the file `<number>.db`.
answers.json: [{"rows": [...]} | {"error": text}], per source the database as it is, then its altered copies.
"""

import base64
import json
import random
import shutil
import sqlite3
from typing import Any

with open("plan.json", encoding="utf-8") as file:
    PLAN = json.load(file)


COPY = "copy.db"


def open_sqlite(script: str | None) -> Any:
    connection = sqlite3.connect(COPY if script is None else ":memory:")
    connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
    if script is not None:
        connection.executescript(script)
    return connection


def open_duckdb(script: str | None) -> Any:
    import duckdb

    connection = duckdb.connect(COPY if script is None else ":memory:")
    connection.execute("SET threads = 1")
    if script is not None:
        connection.execute(script)
    return connection


def perturb(connection: Any, seed: str) -> None:
    """Delete a quarter of each table's rows and let the others exchange their values, in the same way each time."""
    if PLAN["dialect"] == "sqlite":
        connection.execute("PRAGMA foreign_keys = OFF")
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    else:
        names = "SELECT table_name FROM duckdb_tables() WHERE NOT internal ORDER BY table_name"
    for (name,) in connection.execute(names).fetchall():
        table = quoted(name)
        generator = random.Random(f"{seed}:{name}")
        try:
            numbers = [row[0] for row in connection.execute(f"SELECT rowid FROM {table} ORDER BY rowid").fetchall()]
        except sqlite3.OperationalError:
            continue  # made WITHOUT ROWID
        for number in numbers:
            if generator.random() < 0.25:
                connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
        for _, column, _, _, _, is_key in connection.execute(f"PRAGMA table_info({table})").fetchall():
            if not is_key:
                exchange(connection, table, quoted(column), generator)


def exchange(connection: Any, table: str, column: str, generator: random.Random) -> None:
    rows = connection.execute(f"SELECT rowid, {column} FROM {table} ORDER BY rowid").fetchall()
    values = [value for _, value in rows]
    generator.shuffle(values)
    for (number, _), value in zip(rows, values, strict=True):
        try:
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, number))
        except Exception as error:  # a constraint that a changed value breaks has another error class in each driver
            if "onstraint" not in f"{type(error).__name__} {error}":
                raise


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def lock(connection: Any) -> None:
    """Make writing an error. Nothing written here would stay, but a query that writes is no answer."""
    if PLAN["dialect"] == "sqlite":
        connection.commit()
        connection.execute("PRAGMA query_only = ON")
    else:
        connection.execute("SET enable_external_access = false")


def run(connection: Any) -> dict[str, Any]:
    if PLAN["dialect"] == "duckdb":
        statements = connection.extract_statements(PLAN["query"])
        if len(statements) != 1 or statements[0].type.name != "SELECT":
            return {"error": "it is not one query"}
    cursor = connection.execute(PLAN["query"])
    if cursor.description is None:
        return {"error": "it is not a query"}
    rows = cursor.fetchmany(PLAN["max_rows"] + 1)
    if len(rows) > PLAN["max_rows"]:
        return {"error": f"more than {PLAN['max_rows']} rows"}
    return {"rows": [[cell(value) for value in row] for row in rows]}


def cell(value: Any) -> Any:
    """A value as JSON: values that JSON lacks become [kind, text], decimals become numbers."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return ["bytes", base64.b64encode(value).decode()]
    if type(value).__name__ == "Decimal":
        return float(value)
    if isinstance(value, (list, tuple)):
        return ["list", [cell(each) for each in value]]
    if isinstance(value, dict):
        return ["struct", [[str(key), cell(each)] for key, each in value.items()]]
    return [type(value).__name__, str(value)]


def answer(number: int, script: str | None, variant: int) -> dict[str, Any]:
    """Rows of the query on one variant of a database; variant 0 is the database as it is."""
    if script is None:
        shutil.copyfile(f"{number}.db", COPY)
    connection = (open_sqlite if PLAN["dialect"] == "sqlite" else open_duckdb)(script)
    if variant:
        perturb(connection, f"{PLAN['seed']}:{variant}")
    lock(connection)
    try:
        return run(connection)
    except Exception as error:  # noqa: BLE001  each driver has errors of its own
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        connection.close()


def main() -> None:
    answers = [
        answer(number, script, variant)
        for number, script in enumerate(PLAN["sources"])
        for variant in range(PLAN["num_perturbed"] + 1)
    ]
    with open("answers.json", "w", encoding="utf-8") as out:
        json.dump(answers, out)


main()
