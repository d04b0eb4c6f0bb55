"""Queries -> the sandbox program that runs them on every database, and that program's output -> rows or errors."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status

_RUNNER = (Path(__file__).parent / "runners" / "run_query.py").read_text()
_FIRST_LINES = {"sqlite": "", "duckdb": "try:\n    import duckdb\nexcept ImportError:\n    pass\n"}
"""Lines that tell the sandbox which interpreter to fork; an interpreter that has imported duckdb is slower to fork.
Where duckdb is missing, the program says so later."""
_PLAN, _ANSWERS = "plan.json", "answers.json"
_MAX_PROBLEM = 300
_NO_DATABASE_CODE = 3
"""Exit code of the program if a database cannot be made, which no query of the policy has caused."""
Answers: TypeAlias = list[dict[str, Any]]
"""[num_databases] {"rows": [...]}, with "is_stable" if the query was repeated, or {"error": text}."""


class TieAtLimit(NamedTuple):
    """The tie in which the LIMIT of a sorted query falls; a query without its LIMIT is read to the end of this tie."""

    num_reached: int
    """Rows up to the last one that the LIMIT lets through, those that OFFSET leaves out included."""
    columns: tuple[int, ...]
    """Indices of columns by which the rows are sorted."""
    num_keys: int
    """Number of columns at the end of each row by which the rows are sorted, too."""


def query_program(
    *queries: str,
    dialect: Literal["sqlite", "duckdb"],
    databases: Sequence[Path] = (),
    scripts: Sequence[str] = (),
    num_perturbed: int = 0,
    seed: int = 0,
    wall_seconds: float,
    max_rows: int,
    is_repeated: bool = False,
    tie: TieAtLimit | None = None,
) -> Program:
    """The program that runs queries on copies of the databases, so that nothing they write is kept.

    Args:
        queries: Queries that only read.
        dialect: SQL of the query and kind of the databases.
        databases: Database files.
        scripts: SQL scripts, each of which makes one database.
        num_perturbed: Number of altered copies of each database, on which the query is run too.
        seed: Seed of the alterations.
        wall_seconds: Time limit in seconds for all queries on all databases together.
        max_rows: Most rows that a query may give on one database; more are an error.
        is_repeated: Whether each query runs twice, to see whether it gives the same rows.
        tie: Where reading the last query ends; None to read all its rows.

    Raises:
        SandboxRequestError: If the files are too large to send.
    """
    plan = {
        "dialect": dialect,
        "queries": queries,
        "sources": [*(None for _ in databases), *scripts],
        "num_perturbed": num_perturbed,
        "seed": seed,
        "max_rows": max_rows,
        "is_repeated": is_repeated,
        "ties": [*(None for _ in queries[1:]), None if tie is None else tie._asdict()],
        "no_database_code": _NO_DATABASE_CODE,
    }
    files = {f"{number}.db": path.read_bytes() for number, path in enumerate(databases)}
    return Program(
        code=_FIRST_LINES[dialect] + _RUNNER,
        files={**files, _PLAN: json.dumps(plan).encode()},
        fetch=(_ANSWERS,),
        limits=Limits(
            wall_seconds=min(wall_seconds, 600.0),
            cpu_seconds=min(max(1, round(wall_seconds)), 600),
            memory_bytes=1024 * MIB,
            tmp_bytes=64 * MIB + (num_perturbed + 1) * sum(map(len, files.values())),
        ),
    )


def read_answers(result: Result) -> list[Answers] | None:
    """[num_queries] answers of a program; None if it failed or wrote more than can be fetched.

    The policy's query cannot run code in the program, so that the program's output can be trusted.
    """
    if result.status is not Status.OK or _ANSWERS not in result.files:
        return None
    answers: list[Answers] = json.loads(result.files[_ANSWERS])
    return answers


def problem_of_database(result: Result) -> str:
    """Why a program on one database could not make it; "" if it could.

    On several databases of SQLite the queries of the first one run before the next is made, and may be the cause.
    """
    is_missing = result.status is Status.ERROR and result.exit_code == _NO_DATABASE_CODE
    return result.stderr.strip()[-_MAX_PROBLEM:] if is_missing else ""
