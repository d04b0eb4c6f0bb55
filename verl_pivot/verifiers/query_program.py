"""A query -> the program that asks it in the sandbox, and what that wrote: rows of each database, or an error."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status

_RUNNER = (Path(__file__).parent / "runners" / "run_query.py").read_text()
_PLAN, _ANSWERS = "plan.json", "answers.json"
Answers: TypeAlias = list[dict[str, Any]]
"""Of each database {"rows": [...]} or {"error": text}."""


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
    """The program that asks one query, on copies: nothing that it writes stays.

    Args:
        query: One that reads.
        dialect: Of the query and the databases.
        databases: Files.
        scripts: Statements, each of which makes a database.
        num_perturbed: Copies of each with other rows, which are asked too.
        seed: Of those.
        wall_seconds: For all of them.
        max_rows: More are an error.

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


def answers_of(result: Result) -> Answers | None:
    """What the runner wrote: no code of the policy's runs beside it, but the file may be too large to come."""
    if result.status is not Status.OK or _ANSWERS not in result.files:
        return None
    answers: Answers = json.loads(result.files[_ANSWERS])
    return answers
