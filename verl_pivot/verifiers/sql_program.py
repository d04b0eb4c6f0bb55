"""A query -> the sandbox program that runs it on every database, and that program's output -> rows or errors."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status

_RUNNER = (Path(__file__).parent / "runners" / "run_query.py").read_text()
_PLAN, _ANSWERS = "plan.json", "answers.json"
Answers: TypeAlias = list[dict[str, Any]]
"""[num_databases] {"rows": [...]} or {"error": text}."""


def query_program(
    query: str,
    *,
    dialect: Literal["sqlite", "duckdb"],
    databases: Sequence[Path] = (),
    scripts: Sequence[str] = (),
    num_perturbed: int = 0,
    seed: int = 0,
    wall_seconds: float,
    max_rows: int,
) -> Program:
    """The program that runs one query on copies of the databases, so that nothing it writes stays.

    Args:
        query: A query that reads.
        dialect: SQL of the query and kind of the databases.
        databases: Database files.
        scripts: SQL scripts, each of which makes one database.
        num_perturbed: Number of altered copies of each database, on which the query is run too.
        seed: Seed of the alterations.
        wall_seconds: Seconds for all databases together.
        max_rows: Most rows that the query may give on one database; more are an error.

    Raises:
        SandboxRequestError: If the files are too large to send.
    """
    plan = {
        "dialect": dialect,
        "query": query,
        "sources": [*(None for _ in databases), *scripts],
        "num_perturbed": num_perturbed,
        "seed": seed,
        "max_rows": max_rows,
    }
    files = {f"{number}.db": path.read_bytes() for number, path in enumerate(databases)}
    return Program(
        code=_RUNNER,
        files={**files, _PLAN: json.dumps(plan).encode()},
        fetch=(_ANSWERS,),
        limits=Limits(wall_seconds=wall_seconds, cpu_seconds=max(1, round(wall_seconds)), memory_bytes=1024 * MIB),
    )


def read_answers(result: Result) -> Answers | None:
    """The answers of a query's program; None if it failed or wrote more than can be fetched.

    The policy's query cannot run code in the program, so that what the program wrote can be trusted.
    """
    if result.status is not Status.OK or _ANSWERS not in result.files:
        return None
    answers: Answers = json.loads(result.files[_ANSWERS])
    return answers
