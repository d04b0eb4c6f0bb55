"""Runs in the sandbox: runs queries on several databases, as they are and in altered copies -> rows or errors.

plan.json: {"dialect", "queries", "sources": [script | null], "num_perturbed", "seed", "max_rows", "is_repeated",
"ties", "no_database_code"}. Where a source is null, the database is the file `<number>.db`. "ties" has for each query
null, or the TieAtLimit of sql_program.py with which reading the query ends.
answers.json: for each query, per source the database as it is, then its altered copies:
{"rows": [...], "is_stable"} | {"error": text}.
Without a package of the dialect, or if no database can be made of a source, stderr says why and the program ends with
the plan's "no_database_code".
"""

import json
import random
import sys
from binascii import b2a_base64
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from typing import Any, NamedTuple

with open("plan.json", encoding="utf-8") as file:
    PLAN = json.load(file)

COPY = "copy.db"
MAX_PERTURBED_ROWS = 4000
"""Most rows that an altered copy of a table keeps."""
EXACT_DIGITS = 15
"""Most digits of a decimal number that a float holds without loss."""
MAX_DEPTH = 32
"""Most nested lists and structs in a value that can be compared; each struct becomes three nested lists."""
ROUNDS = 8
ROWS_OF_STATEMENT = 100


class NoDatabaseError(Exception):
    """No query can be run: a package is missing, or a source makes no database."""


class Table(NamedTuple):
    """One table of a source."""

    columns: list[Any]
    """[name, _, is not null, _, is key] of each column that takes values; generated columns do not."""
    rows: list[list[Any]]


class SqliteVariant:
    """One SQLite database: a source as it is, or an altered copy."""

    driver: Any = None
    error: Any = None

    def __init__(self, number: int, script: str | None, variant: int, tables: dict[str, Table]) -> None:
        if script is None:
            copy_source(number, COPY)
        self._connection = self.driver.connect(COPY if script is None else ":memory:", isolation_level=None)
        self._connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        if script is not None:
            self._connection.executescript(script)
        else:
            self.fetch("PRAGMA schema_version")  # reads the file, which may be no database
        if variant:
            self._connection.execute("PRAGMA foreign_keys = OFF")
            self._connection.execute("BEGIN")
            perturb(self, tables, variant)
            self._drop_orphans()
        if self._connection.in_transaction:
            self._connection.commit()
        self._connection.execute("PRAGMA query_only = ON")

    def tables(self) -> list[str]:
        found = self.fetch("PRAGMA main.table_list")
        names = [row[1] for row in found if row[2] in ("table", "virtual") and not row[1].startswith("sqlite_")]
        return sorted(names)

    def fetch(self, query: str) -> list[Any]:
        found: list[Any] = self._connection.execute(query).fetchall()
        return found

    def execute(self, statement: str, values: Any = ()) -> None:
        self._connection.execute(statement, [sendable(value) for value in values])

    def is_generated(self, table: str, column: str) -> bool:
        return False  # PRAGMA table_info leaves generated columns out

    def ask(self, query: str) -> Any:
        cursor = self._connection.execute(query)
        return None if cursor.description is None else cursor

    def end_query(self) -> None:
        """Nothing is left open by a query."""

    def close(self) -> None:
        self._connection.close()

    def _drop_orphans(self) -> None:
        """Delete rows whose foreign key refers to a missing row, and then the rows that refer to deleted ones."""
        for _ in range(ROUNDS):
            orphans = [row for row in self.fetch("PRAGMA foreign_key_check") if row[1] is not None]
            if not orphans:
                return
            for table, rowid, _, _ in orphans:
                attempt(self, f"DELETE FROM {quoted(table)} WHERE rowid = ?", (rowid,))


class DuckdbVariant:
    """One DuckDB database; all databases share one connection, since a connection is slow to open."""

    connection: Any = None
    error: Any = None
    num_opened = 0
    asking: Any = None
    """Cursor of the query that is running; settings that a query makes, such as a seed, end with its cursor."""

    @classmethod
    def connect(cls, duckdb: Any) -> None:
        """Open the connection; no zygote may open one ahead, since in its forks all other connections would hang."""
        cls.error, cls.connection = duckdb.Error, duckdb.connect(":memory:", config={"threads": 1})

    def __init__(self, number: int, script: str | None, variant: int, tables: dict[str, Table]) -> None:
        DuckdbVariant.num_opened += 1
        self._name = f"verl_pivot_{DuckdbVariant.num_opened}"
        path = ":memory:" if script is not None else f"{self._name}.db"
        self._definitions: dict[str, str] = {}
        if script is None:
            copy_source(number, path)
        self.execute(f"ATTACH '{path}' AS {self._name}")
        self.execute(f"USE {self._name}")
        if script is not None:
            self.execute(script)
            self.execute(f"USE {self._name}")
        if variant:
            perturb(self, tables, variant)

    def tables(self) -> list[str]:
        query = "SELECT table_name, sql FROM duckdb_tables() WHERE NOT internal AND NOT temporary"
        found = self.fetch(f"{query} AND schema_name = 'main' AND database_name = '{self._name}'")
        self._definitions = {name: sql.upper() for name, sql in found}
        return sorted(self._definitions)

    def fetch(self, query: str) -> list[Any]:
        found: list[Any] = self.connection.execute(query).fetchall()
        return found

    def execute(self, statement: str, values: Any = ()) -> None:
        self.connection.execute(statement, values) if values else self.connection.execute(statement)

    def is_generated(self, table: str, column: str) -> bool:
        if "GENERATED" not in self._definitions[table]:
            return False
        place, name = quoted(table), quoted(column)
        return not attempt(self, f"INSERT INTO {place} ({name}) SELECT {name} FROM {place} WHERE 1 = 0")

    def ask(self, query: str) -> Any:
        """Rows of a query, in a read-only transaction: even a SELECT may write, by an INSERT or DELETE in its WITH."""
        self.asking = self.connection.cursor()
        self.asking.execute(f"USE {self._name}")
        self.asking.execute("BEGIN TRANSACTION READ ONLY")
        statements = self.asking.extract_statements(query)
        if len(statements) != 1 or statements[0].type.name != "SELECT":
            return None
        return self.asking.execute(query)

    def end_query(self) -> None:
        self.asking.close()

    def close(self) -> None:
        """The connection closes all databases when the program ends."""


def sendable(value: Any) -> Any:
    """The value, or its bytes if it is text that is not UTF-8, which SQLite may hold but does not accept as text."""
    if not isinstance(value, str) or value.isascii():
        return value
    data = value.encode("utf-8", "surrogateescape")
    return data if any("\udc80" <= letter <= "\udcff" for letter in value) else value


def copy_source(number: int, path: str) -> None:
    with open(f"{number}.db", "rb") as source, open(path, "wb") as copy:
        copy.write(source.read())


def attempt(database: Any, statement: str, values: Any = ()) -> bool:
    """Execute a statement that a constraint may forbid; returns whether it was executed."""
    try:
        database.execute(statement, values)
    except database.error:
        return False
    return True


def read_tables(database: Any) -> dict[str, Table]:
    """The tables of a source with the rows that an altered copy may keep; altered copies have no other rows."""
    found = {}
    for name in database.tables():
        described = [row[1:6] for row in database.fetch(f"PRAGMA table_info({quoted(name)})")]
        columns = [column for column in described if not database.is_generated(name, column[0])]
        if columns:
            names = ", ".join(quoted(column[0]) for column in columns)
            rows = database.fetch(f"SELECT {names} FROM {quoted(name)} LIMIT {MAX_PERTURBED_ROWS}")
            found[name] = Table(columns, [list(row) for row in rows])
    return found


def perturb(database: Any, tables: dict[str, Table], variant: int) -> None:
    """Rewrite every table with altered rows, as far as its constraints allow, in the same way each time.

    Foreign keys may forbid that a row is deleted, or demand that another row is inserted first: hence several rounds.
    """
    waiting = {
        name: altered_rows(table, random.Random(f"{PLAN['seed']}:{variant}:{name}"), variant)
        for name, table in tables.items()
    }
    is_empty = dict.fromkeys(waiting, False)
    for _ in range(ROUNDS):
        for name in [name for name, is_done in is_empty.items() if not is_done]:
            is_empty[name] = attempt(database, f"DELETE FROM {quoted(name)}")
    for _ in range(ROUNDS):
        num_waiting = sum(map(len, waiting.values()))
        for name, rows in waiting.items():
            waiting[name] = insert(database, name, tables[name].columns, rows) if is_empty[name] else []
        if sum(map(len, waiting.values())) in (0, num_waiting):
            return


def altered_rows(table: Table, generator: random.Random, variant: int) -> list[Any]:
    """A table's rows, some missing, values of a column exchanged; in some variants with NULLs, new numbers, doubles."""
    keys = {index for index, column in enumerate(table.columns) if column[4]}
    kept = [list(row) for row in table.rows if generator.random() >= 0.25] or [list(row) for row in table.rows[:1]]
    is_alone = len(table.rows) == 1
    for index, column in enumerate(table.columns):
        if index in keys and not is_alone:
            continue
        values = [row[index] for row in kept]
        generator.shuffle(values)
        for row, value in zip(kept, values, strict=True):
            if is_alone or (variant % 4 in (0, 3) and generator.random() < 0.5):
                value = other_value(value, generator, is_alone)
            if variant % 2 == 0 and not column[2] and generator.random() < 0.15:
                value = None
            row[index] = value
        if variant % 2 == 0 and not column[2] and index not in keys and kept:
            generator.choice(kept)[index] = None
    if variant % 4 in (0, 3):
        kept += doubles(kept, keys, generator)
    return kept


def other_value(value: Any, generator: random.Random, is_alone: bool) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value + generator.randint(1, 9)
    if isinstance(value, (float, Decimal)):
        return value + generator.randint(1, 9)
    if is_alone and isinstance(value, str) and value.replace(" ", "").isalpha():
        return value + "s" if value == value[::-1] else value[::-1]
    return value


def doubles(rows: list[Any], keys: set[int], generator: random.Random) -> list[Any]:
    """Copies of some rows, with new values in the key columns; none if a key is not a whole number."""
    copies = [list(row) for row in rows if generator.random() < 0.2] or [list(row) for row in rows[:1]]
    for index in keys:
        numbers = [row[index] for row in rows]
        if not all(isinstance(number, int) for number in numbers):
            return []
        for number, row in enumerate(copies, start=max(numbers, default=0) + 1):
            row[index] = number
    return copies


def insert(database: Any, table: str, columns: list[Any], rows: list[Any]) -> list[Any]:
    """Insert rows, many in one statement unless it is refused; returns the rows that a constraint refused."""
    names, row_of_values = ", ".join(quoted(column[0]) for column in columns), f"({', '.join('?' * len(columns))})"
    statement = f"INSERT INTO {quoted(table)} ({names}) VALUES "
    refused = []
    for start in range(0, len(rows), ROWS_OF_STATEMENT):
        some = rows[start : start + ROWS_OF_STATEMENT]
        together = statement + ", ".join([row_of_values] * len(some))
        if not attempt(database, together, [value for row in some for value in row]):
            refused += [row for row in some if not attempt(database, statement + row_of_values, row)]
    return refused


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def answers_to_all(database: Any) -> list[dict[str, Any]]:
    """[num_queries] answers"""
    return [answer(database, query, tie) for query, tie in zip(PLAN["queries"], PLAN["ties"], strict=True)]


def answer(database: Any, query: str, tie: dict[str, Any] | None) -> dict[str, Any]:
    try:
        found = run(database, query, tie)
        if PLAN["is_repeated"] and "rows" in found:
            again = run(database, query, tie).get("rows")
            found["is_stable"] = json.dumps(again) == json.dumps(found["rows"])
    except Exception as error:  # noqa: BLE001  each driver has errors of its own
        return {"error": f"{type(error).__name__}: {error}"}
    return found


def run(database: Any, query: str, tie: dict[str, Any] | None) -> dict[str, Any]:
    try:
        cursor = database.ask(query)
        rows = None if cursor is None else fetched(cursor, tie)
    finally:
        database.end_query()
    if rows is None:
        return {"error": "it is not one query"}
    if len(rows) > PLAN["max_rows"]:
        return {"error": f"more than {PLAN['max_rows']} rows"}
    return {"rows": [[cell(value) for value in row] for row in rows]}


def fetched(cursor: Any, tie: dict[str, Any] | None) -> list[Any]:
    """Rows of a query, at most one more than are allowed; where a LIMIT was, those up to the end of the tie there."""
    most = PLAN["max_rows"] + 1
    if tie is None:
        return list(cursor.fetchmany(most))
    rows = list(cursor.fetchmany(min(tie["num_reached"], most)))
    while rows and len(rows) < most and (row := cursor.fetchone()) and keys(row, tie) == keys(rows[-1], tie):
        rows.append(row)
    return rows


def keys(row: Any, tie: dict[str, Any]) -> list[Any]:
    """Values by which a row is sorted: those of its own columns, then those of the added ones at its end."""
    return [*(row[column] for column in tie["columns"]), *row[len(row) - tie["num_keys"] :]]


def cell(value: Any, depth: int = 0) -> Any:
    """A value as JSON: values that JSON lacks become [kind, content], and decimals become numbers if these hold them.

    Raises:
        ValueError: If lists and structs are nested too deeply in the value.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return ["bytes", b2a_base64(value, newline=False).decode()]
    if isinstance(value, Decimal):
        if value.is_finite() and value == value.to_integral_value():
            return int(value)
        return float(value) if len(value.as_tuple().digits) <= EXACT_DIGITS else ["decimal", str(value.normalize())]
    if not isinstance(value, (list, tuple, dict)):
        return [type(value).__name__, str(value)]
    if depth == MAX_DEPTH:
        raise ValueError(f"a value of more than {MAX_DEPTH} lists and structs within each other")
    if isinstance(value, dict):
        return ["struct", [[str(key), cell(each, depth + 1)] for key, each in value.items()]]
    return ["list", [cell(each, depth + 1) for each in value]]


def package(name: str) -> Any:
    """The module of a dialect; raises NoDatabaseError without it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NoDatabaseError(f"{type(error).__name__}: {error}") from error


def made_source(kind: Any, number: int, script: str | None) -> Any:
    """The database of a source; raises NoDatabaseError if it cannot be made."""
    try:
        return kind(number, script, 0, {})
    except Exception as error:  # each driver has errors of its own
        raise NoDatabaseError(f"{type(error).__name__}: {error}") from error


def variants(kind: Any) -> Iterator[Any]:
    """The databases: each source as it is, then its altered copies."""
    for number, script in enumerate(PLAN["sources"]):
        source = made_source(kind, number, script)
        tables = read_tables(source) if PLAN["num_perturbed"] else {}
        yield source
        for variant in range(1, PLAN["num_perturbed"] + 1):
            yield kind(number, script, variant, tables)


def answers_of_sqlite() -> list[list[dict[str, Any]]]:
    """[num_variants][num_queries] answers; one database is open at a time."""
    SqliteVariant.driver = package("sqlite3")
    SqliteVariant.error = SqliteVariant.driver.Error
    found = []
    for database in variants(SqliteVariant):
        found.append(answers_to_all(database))
        database.close()
    return found


def answers_of_duckdb() -> list[list[dict[str, Any]]]:
    """[num_variants][num_queries] answers; all databases are made before queries lose access to files."""
    DuckdbVariant.connect(package("duckdb"))
    databases = list(variants(DuckdbVariant))
    DuckdbVariant.connection.execute("SET enable_external_access = false")
    return [answers_to_all(database) for database in databases]


def main() -> None:
    try:
        found = answers_of_sqlite() if PLAN["dialect"] == "sqlite" else answers_of_duckdb()
    except NoDatabaseError as error:
        print(error, file=sys.stderr)
        sys.exit(PLAN["no_database_code"])
    with open("answers.json", "w", encoding="utf-8") as out:
        json.dump(list(zip(*found, strict=True)), out)


main()
