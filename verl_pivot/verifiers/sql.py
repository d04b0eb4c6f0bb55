"""Verifier `sql`: a query is right if it gives the rows of the expert's query, on the databases and altered copies."""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.extras import extra
from verl_pivot.sandbox.execution import MAX_FILE_BYTES, Program, Result, Status
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.extraction import extract_program
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.sandboxed import REASONS, execute, sandbox_failed
from verl_pivot.verifiers.sql_program import query_program, read_answers
from verl_pivot.verifiers.sql_rows import Rows, same_rows
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse, undecided

with extra("sql"):
    import sqlglot


_MAX_CACHED_QUERIES = 1024


class SqlOptions(Options):
    """Options of the verifier `sql`. Databases are given as files, as scripts that make them, or both."""

    dialect: Literal["sqlite", "duckdb"] = "sqlite"
    databases: tuple[Path, ...] = ()
    """Database files, at most 8 MiB together, on the machine that the verifier runs on."""
    scripts: tuple[str, ...] = ()
    """SQL scripts, each of which makes one database."""
    num_perturbed: Annotated[int, Field(ge=0, le=16)] = 4
    """Number of altered copies of each database. Rows are missing and values exchanged there, so that a query which has
    the expert's rows written into it fails."""
    seed: int = 0
    """Seed of the alterations."""
    argument: ToolArgument | None = None
    """Argument that holds the query, as "tool.argument"; None for the last code block of the text."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Seconds for one query on all databases."""
    max_rows: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most rows that a query may give on one database."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.databases and not self.scripts:
            raise ValueError("give databases or scripts")
        return self


class _ExpertRows(NamedTuple):
    """Rows of the expert's query."""

    by_database: list[Rows]
    """[num_databases]"""
    is_ordered: bool
    """Whether the order of the rows counts."""


_expert_rows: AskedOnce[tuple[SqlOptions, str], _ExpertRows | Verdict] = AskedOnce(_MAX_CACHED_QUERIES)


@register("sql", options=SqlOptions)
class SqlVerifier:
    """Runs both queries in sandboxes of their own, on copies of the databases, and compares the rows outside.

    Order counts only where the expert's query has an ORDER BY of its own. An expert's query without any row on any
    database is broken: every wrong query that finds nothing would equal it (as in the test suites of
    arXiv:2010.02840, several databases tell queries apart that agree on one).
    """

    def __init__(self, options: SqlOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        expert, query = (extract_program(each, self._options.argument) for each in (turn.expert, action))
        if isinstance(expert, Verdict):
            return broken_expert("the expert's action holds no query")
        if isinstance(query, Verdict):
            return query
        try:
            expert_rows = await _expert_rows.get((self._options, expert), lambda: self._run_expert(expert))
            if isinstance(expert_rows, Verdict):
                return expert_rows
            (result,) = await execute([self._program(query)])
        except SandboxRequestError as error:  # such as a row whose files are too large to send
            return broken_expert(str(error))
        except SandboxError as error:
            return sandbox_failed(error)
        return _compare(result, expert_rows)

    async def _run_expert(self, query: str) -> _ExpertRows | Verdict:
        """Rows of the expert's query, or the verdict that there is nothing to compare with."""
        if problem := self._problem_of_databases():
            return broken_expert(problem)
        try:
            parsed = sqlglot.parse_one(query, dialect=self._options.dialect)
        except (sqlglot.errors.SqlglotError, RecursionError) as error:
            return broken_expert(f"the expert's query cannot be read: {error}")
        (result,) = await execute([self._program(query)])
        if result.status in (Status.TIMEOUT, Status.CPU_LIMIT):
            return undecided(Reason.EXPERT_TIME_LIMIT, f"more than {self._options.wall_seconds:g} s")
        answers = read_answers(result)
        if answers is None:
            return broken_expert(f"the databases cannot be made: {result.status}: {result.stderr.strip()[-300:]}")
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            return broken_expert(f"the expert's query fails: {errors[0]}")
        rows = [answer["rows"] for answer in answers]
        if not any(rows):
            return broken_expert("the expert's query gives no row on any database; every query without rows equals it")
        return _ExpertRows(rows, parsed.args.get("order") is not None)

    def _problem_of_databases(self) -> str:
        """Why the database files cannot be sent to the sandbox; empty if they can."""
        missing = [str(path) for path in self._options.databases if not path.is_file()]
        if missing:
            return f"no such database: {missing[0]}"
        size = sum(path.stat().st_size for path in self._options.databases)
        return f"databases of {size} bytes; at most {MAX_FILE_BYTES} can be sent" if size > MAX_FILE_BYTES else ""

    def _program(self, query: str) -> Program:
        options = self._options
        return query_program(
            query,
            dialect=options.dialect,
            databases=options.databases,
            scripts=options.scripts,
            num_perturbed=options.num_perturbed,
            seed=options.seed,
            wall_seconds=options.wall_seconds,
            max_rows=options.max_rows,
        )


def _compare(result: Result, expert: _ExpertRows) -> Verdict:
    if result.status is not Status.OK:
        return refuse(REASONS[result.status], result.stderr.strip()[-300:])
    answers = read_answers(result)
    if answers is None or len(answers) != len(expert.by_database):
        return refuse(Reason.OUTPUT_LIMIT, "; ".join(result.file_errors.values()))
    for number, (answer, expert_rows) in enumerate(zip(answers, expert.by_database, strict=True)):
        if "error" in answer:
            return refuse(Reason.RUNTIME_ERROR, str(answer["error"])[:300])
        if not same_rows(answer["rows"], expert_rows, is_ordered=expert.is_ordered):
            detail = f"database {number}: {len(answer['rows'])} rows, the expert's query gives {len(expert_rows)}"
            return refuse(Reason.WRONG_ROWS, detail)
    return Verdict.accept()
