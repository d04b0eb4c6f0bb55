"""Verifier `sql`: does a query give the rows that the expert's gives, on every database and on perturbed ones?"""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import sqlglot
from cachetools import LRUCache
from pydantic import BaseModel, ConfigDict, Field, model_validator

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.execution import MAX_FILE_BYTES, Program, Result, Status
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.verifiers.candidates import candidate
from verl_pivot.verifiers.executions import REASONS, execute, undecided
from verl_pivot.verifiers.query_program import answers_of, query_program
from verl_pivot.verifiers.reasons import Reason
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.sql_rows import Rows, same_rows
from verl_pivot.verifiers.verdicts import ACCEPTED, broken_gold, refuse

_NUM_CACHED = 1024


class SqlOptions(BaseModel):
    """Options of the row's verifier `sql`: databases as files, as scripts that make them, or both."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dialect: Literal["sqlite", "duckdb"] = "sqlite"
    databases: tuple[Path, ...] = ()
    """Files, together at most 8 MiB, where verdicts are given."""
    scripts: tuple[str, ...] = ()
    """Statements; each makes a database of its own."""
    num_perturbed: Annotated[int, Field(ge=0, le=16)] = 4
    """Copies of each, in which rows are missing and values exchanged: what is written into a query is wrong there."""
    seed: int = 0
    argument: str | None = None
    """"tool.argument" that holds the query; None for the last code block of the text."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Of one query on all databases."""
    max_rows: Annotated[int, Field(ge=1, le=100_000)] = 10_000

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.databases and not self.scripts:
            raise ValueError("give databases or scripts")
        if self.argument is not None and "." not in self.argument:
            raise ValueError(f"argument must be 'tool.argument', got {self.argument!r}")
        return self


class _Gold(NamedTuple):
    """What the expert's query gives: rows of each database, and whether their order counts."""

    answers: list[Rows]
    is_ordered: bool


_golds: LRUCache[tuple[SqlOptions, str], _Gold | Verdict] = LRUCache(_NUM_CACHED)


@register("sql", options=SqlOptions)
class SqlVerifier:
    """Both queries run in sandboxes of their own, on copies; their rows are compared out here.

    Order counts only where the expert's query has an ORDER BY of its own. An expert's query without any row on any
    database is broken: every wrong query that finds nothing would equal it (as in the test suites of
    arXiv:2010.02840, several databases tell queries apart that agree on one).
    """

    def __init__(self, options: SqlOptions) -> None:
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        expert, query = (candidate(each, self._options.argument) for each in (turn.expert, action))
        if isinstance(expert, Verdict):
            return broken_gold("the expert's action holds no query")
        if isinstance(query, Verdict):
            return query
        try:
            gold = await self._gold(expert)
            if isinstance(gold, Verdict):
                return gold
            (result,) = await execute([self._program(query)])
        except SandboxRequestError as error:  # such as a row whose files are too large to send
            return broken_gold(str(error))
        except SandboxError as error:
            return undecided(error)
        return _verdict(result, gold)

    async def _gold(self, query: str) -> _Gold | Verdict:
        """The expert's rows, or why there is nothing to compare with; asked once."""
        key = (self._options, query)
        if key not in _golds:
            unread = self._unread()
            _golds[key] = broken_gold(unread) if unread else await self._ask_gold(query)
        return _golds[key]

    def _unread(self) -> str:
        """Why the databases cannot be sent; empty if they can."""
        missing = [str(path) for path in self._options.databases if not path.is_file()]
        if missing:
            return f"no such database: {missing[0]}"
        size = sum(path.stat().st_size for path in self._options.databases)
        return f"databases of {size} bytes; at most {MAX_FILE_BYTES} can be sent" if size > MAX_FILE_BYTES else ""

    async def _ask_gold(self, query: str) -> _Gold | Verdict:
        options = self._options
        try:
            parsed = sqlglot.parse_one(query, dialect=options.dialect)
        except (sqlglot.errors.SqlglotError, RecursionError) as error:
            return broken_gold(f"the expert's query cannot be read: {error}")
        (result,) = await execute([self._program(query)])
        if result.status in (Status.TIMEOUT, Status.CPU_LIMIT):
            return Verdict(score=None, reason=Reason.GOLD_TIME_LIMIT, detail=f"more than {options.wall_seconds:g} s")
        answers = answers_of(result)
        if answers is None:
            return broken_gold(f"the databases cannot be made: {result.status}: {result.stderr.strip()[-300:]}")
        failed = [answer["error"] for answer in answers if "error" in answer]
        if failed:
            return broken_gold(f"the expert's query fails: {failed[0]}")
        rows = [answer["rows"] for answer in answers]
        if not any(rows):
            return broken_gold("the expert's query gives no row on any database: any that finds nothing would do")
        return _Gold(rows, parsed.args.get("order") is not None)

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


def _verdict(result: Result, gold: _Gold) -> Verdict:
    if result.status is not Status.OK:
        return refuse(REASONS[result.status], result.stderr.strip()[-300:])
    answers = answers_of(result)
    if answers is None or len(answers) != len(gold.answers):
        return refuse(Reason.OUTPUT_LIMIT, "; ".join(result.file_errors.values()))
    for number, (answer, rows) in enumerate(zip(answers, gold.answers, strict=True)):
        if "error" in answer:
            return refuse(Reason.RUNTIME_ERROR, str(answer["error"])[:300])
        if not same_rows(answer["rows"], rows, is_ordered=gold.is_ordered):
            detail = f"database {number}: {len(answer['rows'])} rows, the expert's {len(rows)}"
            return refuse(Reason.WRONG_ROWS, detail)
    return ACCEPTED
