"""Verifier `sql`: a query is right if it gives the expert query's rows, on the databases and on altered copies."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.extras import extra
from verl_pivot.loop_local import LoopLocal
from verl_pivot.off_loop import run_off_loop
from verl_pivot.sandbox.execution import MAX_FILE_BYTES, Program, Result, Status
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options, ToolArgument
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.extraction import extract_program
from verl_pivot.verifiers.gathering import Gathering
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.sandboxed import REASONS, execute, sandbox_failed, size_of_result
from verl_pivot.verifiers.sql_order import SqlOrder, clock_in, order_of
from verl_pivot.verifiers.sql_program import Answers, TieAtLimit, query_program, read_answers
from verl_pivot.verifiers.sql_rows import Rows, SortedRows, fits, same_rows
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse, undecided

with extra("sql"):
    import sqlglot


_MAX_CACHED_QUERIES = 1024
_MAX_TOGETHER = 8
"""Most queries that run in one program; making the databases takes most of its time."""
_NO_TIES = "the rows among which the ORDER BY or LIMIT of the expert's query chooses cannot be read"
_TOO_SLOW = "making the databases and running the expert's query once takes more than {:g} s; give more wall_seconds"
_SHARED_SECONDS = 2.0
"""Time limit in seconds for queries that run together; if they take longer, each runs alone, with its full time."""


class SqlOptions(Options):
    """Options of the verifier `sql`. Databases are given as files, as scripts that make them, or both."""

    dialect: Literal["sqlite", "duckdb"] = "sqlite"
    """Database engine that runs the queries."""
    databases: tuple[Path, ...] = ()
    """Database files, at most 8 MiB together, on the machine that the verifier runs on."""
    scripts: tuple[str, ...] = ()
    """SQL scripts, each of which makes one database."""
    num_perturbed: Annotated[int, Field(ge=0, le=16)] = 4
    """Number of altered copies of each database. In them, rows are missing or doubled, values are exchanged or NULL,
    and numbers are changed, so that a query with the expert's rows written into it fails."""
    seed: int = 0
    """Seed of the alterations."""
    argument: ToolArgument | None = None
    """Argument that holds the query, as "tool.argument"; None for the last code block of the text."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Time limit in seconds for one query on all databases."""
    max_rows: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most rows that a query may give on one database."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.databases and not self.scripts:
            raise ValueError("give databases or scripts")
        return self


class _ExpertRows(NamedTuple):
    """Rows of the expert's query on one database."""

    rows: Rows
    tied: SortedRows | None
    """Rows that it may give, with their sort keys; None if the query has neither ORDER BY nor LIMIT."""

    def equal(self, rows: Rows) -> bool:
        """Whether another query's rows are right."""
        if self.tied is not None:
            return fits(rows, self.tied, len(self.rows))
        return same_rows(rows, self.rows, is_ordered=False)


_ExpertAnswer: TypeAlias = "tuple[_ExpertRows | None, ...] | Verdict"
"""[num_databases] rows of the expert's query, None for an altered copy that does not count; or a verdict alone."""
_expert_rows: AskedOnce[tuple[SqlOptions, str], _ExpertAnswer] = AskedOnce(_MAX_CACHED_QUERIES)
_is_too_slow: AskedOnce[tuple[SqlOptions, str], bool] = AskedOnce(_MAX_CACHED_QUERIES)
"""Whether the expert's query, too, takes longer than a query of the policy may."""


@register("sql", options=SqlOptions)
class SqlVerifier:
    """Runs both queries in sandboxes of their own, on copies of the databases, and compares the rows outside.

    The order of rows counts only if the expert's query has an ORDER BY of its own, and not among tied rows. An expert's
    query that gives no row on any database is broken: every wrong query that finds nothing would equal it. As in the
    test suites of arXiv:2010.02840, several databases tell apart queries that agree on one database.
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
            outcome = await self._run(query)
            if outcome.is_too_slow and await _is_too_slow.get((self._options, expert), lambda: self._is_slow(expert)):
                return undecided(Reason.EXPERT_TIME_LIMIT, _TOO_SLOW.format(self._options.wall_seconds))
        except SandboxRequestError as error:  # this query is too large: the expert's could be sent
            return refuse(Reason.TOO_LONG, str(error))
        except SandboxError as error:
            return sandbox_failed(error)
        return await run_off_loop(outcome.size, _compare, outcome.answers, expert_rows)

    async def _run(self, query: str) -> "_QueryOutcome":
        if self._options.dialect == "duckdb":
            return await (await _queries.get()).ask(self._options, query)
        (outcome,) = await _run_queries(self._options, [query])  # alone: a PRAGMA would change other queries, too
        assert outcome is not None, "a query that runs alone has an outcome"
        return outcome

    async def _is_slow(self, expert: str) -> bool:
        """Whether the expert's query itself takes too long where it runs as a query of the policy does."""
        (outcome,) = await _run_queries(self._options, [expert])
        return outcome is not None and outcome.is_too_slow

    async def _run_expert(self, query: str) -> _ExpertAnswer:
        """Rows of the expert's query, or the verdict that there is nothing to compare with."""
        if problem := self._problem_of_databases():
            return broken_expert(problem)
        try:
            parsed = sqlglot.parse_one(query, dialect=self._options.dialect)
        except (sqlglot.errors.SqlglotError, RecursionError, AttributeError, TypeError, ValueError) as error:
            return broken_expert(f"the expert's query cannot be read: {error}")
        if clock := clock_in(parsed):
            return broken_expert(f"the expert's query depends on the current time: it has {clock}")
        order = order_of(parsed, self._options.dialect)
        if order is None and any(parsed.args.get(clause) for clause in ("order", "limit", "offset")):
            return broken_expert(f"{_NO_TIES}: added columns cannot show what it is sorted by")
        queries = [query]
        if order is not None and order.query is not None:
            queries.append(order.query)
        tie = None if order is None else order.tie
        try:
            (result,) = await execute([sql_program(self._options, queries, is_expert=True, tie=tie)])
        except SandboxRequestError as error:  # such as a row whose files are too large to send
            return broken_expert(str(error))
        return await run_off_loop(size_of_result(result), self._read_expert, result, order)

    def _read_expert(self, result: Result, order: SqlOrder | None) -> _ExpertAnswer:
        if result.status in (Status.TIMEOUT, Status.CPU_LIMIT):
            problem = f"the expert's query takes more than {self._options.wall_seconds:g} s"
            return undecided(Reason.EXPERT_TIME_LIMIT, problem)
        answers = read_answers(result)
        if answers is None:
            why = "; ".join(result.file_errors.values()) or result.stderr.strip()[-300:]
            return broken_expert(f"the databases cannot be made, or the rows cannot be read: {result.status}: {why}")
        if problem := _problem_of_rows(answers[0], self._options.num_perturbed + 1):
            return broken_expert(problem)
        sorted_answers: Sequence[dict[str, Any]] = answers[1] if len(answers) > 1 else [{}] * len(answers[0])
        found = tuple(
            None if "error" in plain else _expert_rows_of(plain["rows"], every.get("rows"), order)
            for plain, every in zip(answers[0], sorted_answers, strict=True)
        )
        for every, rows in list(zip(sorted_answers, found, strict=True))[:: self._options.num_perturbed + 1]:
            if rows is None:
                return broken_expert(f"{_NO_TIES}: {every.get('error', 'with its sort keys it gives other rows')}")
        return found

    def _problem_of_databases(self) -> str:
        """Why the database files cannot be sent to the sandbox; empty if they can."""
        missing = [str(path) for path in self._options.databases if not path.is_file()]
        if missing:
            return f"no such database: {missing[0]}"
        size = sum(path.stat().st_size for path in self._options.databases)
        return f"the databases have {size} bytes; the limit is {MAX_FILE_BYTES} bytes" if size > MAX_FILE_BYTES else ""


def sql_program(
    options: SqlOptions, queries: Sequence[str], *, is_expert: bool = False, tie: TieAtLimit | None = None
) -> Program:
    """Program that runs queries of the policy, or each query of the expert twice.

    Raises:
        SandboxRequestError: If the files are too large to send.
    """
    seconds = options.wall_seconds if len(queries) == 1 else min(options.wall_seconds, _SHARED_SECONDS)
    return query_program(
        *queries,
        dialect=options.dialect,
        databases=options.databases,
        scripts=options.scripts,
        num_perturbed=options.num_perturbed,
        seed=options.seed,
        wall_seconds=options.wall_seconds * 2 * len(queries) if is_expert else seconds,
        max_rows=options.max_rows,
        is_repeated=is_expert,
        tie=tie,
    )


class _QueryOutcome(NamedTuple):
    """Outcome of a query of the policy."""

    answers: "Answers | Verdict"
    """[num_databases] answers, or the verdict if there are none."""
    size: int
    """Characters and bytes that the program wrote, for this query and for those that ran with it."""

    @property
    def is_too_slow(self) -> bool:
        """Whether making the databases and running the query took longer than allowed."""
        return isinstance(self.answers, Verdict) and self.answers.reason == Reason.TIME_LIMIT


async def _run_queries(options: SqlOptions, queries: Sequence[str]) -> list[_QueryOutcome | None]:
    """Outcomes of queries, in order; None for each if they cannot run together, for example because one is slow.

    Raises:
        SandboxRequestError: If a query alone is too large to send.
        SandboxError: If the system could not run the program.
    """
    is_alone = len(queries) == 1
    try:
        (result,) = await execute([sql_program(options, queries)])
    except SandboxRequestError:
        if is_alone:
            raise
        return [None] * len(queries)
    size = size_of_result(result)
    if result.status is not Status.OK and is_alone:
        return [_QueryOutcome(refuse(REASONS[result.status], result.stderr.strip()[-300:]), size)]
    found = await run_off_loop(size, read_answers, result)
    if found is None and is_alone:
        return [_QueryOutcome(refuse(Reason.OUTPUT_LIMIT, "; ".join(result.file_errors.values())), size)]
    return [None] * len(queries) if found is None else [_QueryOutcome(answers, size) for answers in found]


def _gather_queries() -> Gathering[SqlOptions, str, _QueryOutcome]:
    """Gathers the queries of one event loop; those on the same DuckDB databases run in one program."""
    return Gathering(_run_queries, _MAX_TOGETHER)


_queries = LoopLocal(_gather_queries)


def _problem_of_rows(answers: Answers, num_variants: int) -> str:
    """Reason why no query can be compared with the expert's rows; empty if one can.

    The first answer of each database is that of the original; the others are those of its altered copies.
    """
    errors = [answer["error"] for answer in answers[::num_variants] if "error" in answer]
    if errors:
        return f"the expert's query fails: {errors[0]}"
    if not all(answer.get("is_stable", True) for answer in answers):
        return "the expert's query gives other rows when it is run again"
    if not any(answer.get("rows") for answer in answers):
        return "the expert's query gives no row on any database; every query without rows would be accepted"
    return ""


def _expert_rows_of(rows: Rows, every: Rows | None, order: SqlOrder | None) -> _ExpertRows | None:
    """The expert's rows; None if the rows among which its order and LIMIT choose cannot be read."""
    if order is None:
        return _ExpertRows(rows, None)
    tied = order.sorted_rows(rows, every)
    return None if tied is None or not fits(rows, tied, len(rows)) else _ExpertRows(rows, tied)


def _compare(answers: Answers | Verdict, expert: Sequence[_ExpertRows | None]) -> Verdict:
    if isinstance(answers, Verdict):
        return answers
    for number, (answer, expert_rows) in enumerate(zip(answers, expert, strict=True)):
        if expert_rows is None:
            continue
        if "error" in answer:
            return refuse(Reason.RUNTIME_ERROR, str(answer["error"])[:300])
        if not expert_rows.equal(answer["rows"]):
            detail = f"database {number}: {len(answer['rows'])} rows, the expert's query gives {len(expert_rows.rows)}"
            return refuse(Reason.WRONG_ROWS, detail)
    return Verdict.accept()
