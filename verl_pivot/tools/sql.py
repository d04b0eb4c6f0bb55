"""Tool `sql`: a query that only reads -> its rows as text, run in the sandbox on the database of the dataset's row."""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.data.tool_schemas import text_schema
from verl_pivot.errors import ToolFailureError
from verl_pivot.sandbox.execution import MAX_FILE_BYTES, Program, Result, Status
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.registry import register_tool
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, JsonObject
from verl_pivot.validation import Options
from verl_pivot.verifiers.sandboxed import execute
from verl_pivot.verifiers.sql_program import problem_of_database, query_program, read_answers

_TIME_LIMITS = (Status.TIMEOUT, Status.CPU_LIMIT)
_MAX_DATABASE_BYTES = MAX_FILE_BYTES - 64 * 1024
"""Most bytes of a database or script; the rest of what a program may get is room for the query."""
_SCHEMA = text_schema(
    "sql", "Run one SQL query that only reads; its rows come back, one a line.", {"query": "The query."}
)


class SqlToolOptions(Options):
    """Options of `- tool: sql`."""

    dialect: Literal["sqlite", "duckdb"] = "sqlite"
    """Database that runs the queries."""
    folder: Path | None = None
    """Folder of the databases that rows name in metadata.database, each of at most 8 MiB less the 64 KiB for the query;
    None: rows bring metadata.script instead, of as many bytes."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Seconds that a query may run."""
    max_rows: Annotated[int, Field(ge=1, le=10_000)] = 50
    """Most rows that one call returns."""


@register_tool("sql", options=SqlToolOptions)
class SqlTool:
    """Queries a copy of the row's database: the file `metadata.database`, or a database made by `metadata.script`."""

    schema = _SCHEMA
    policy = CallPolicy(timeout_seconds=None)  # the sandbox limits the query

    def __init__(self, options: SqlToolOptions) -> None:
        self._options = options

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        (result,) = await execute([self._program(str(arguments["query"]), workspace)])
        return _observe(result)

    def _program(self, query: str, workspace: Workspace) -> Program:
        options, database, script = self._options, workspace.metadata.get("database"), workspace.metadata.get("script")
        if isinstance(script, str):
            _check_size("metadata.script", len(json.dumps(script)))
            files: list[Path] = []
            scripts = [script]
        elif isinstance(database, str) and options.folder is not None:
            files, scripts = [self._file(options.folder, database)], []
        else:
            raise ToolFailureError(
                "tool sql: the row needs metadata.script, or metadata.database and `folder` in the tool's entry"
            )
        return query_program(
            query, dialect=options.dialect, databases=files, scripts=scripts,
            wall_seconds=options.wall_seconds, max_rows=options.max_rows,
        )  # fmt: skip

    @staticmethod
    def _file(folder: Path, database: str) -> Path:
        path = (folder / database).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise ToolFailureError(f"tool sql: there is no database {database!r} in {folder}")
        _check_size("metadata.database", path.stat().st_size)
        return path


def _check_size(place: str, num_bytes: int) -> None:
    """Raises ToolFailureError if a row's database is larger than any program of the sandbox may get."""
    if num_bytes > _MAX_DATABASE_BYTES:
        raise ToolFailureError(
            f"tool sql: {place} has {num_bytes} bytes, but the sandbox takes at most {_MAX_DATABASE_BYTES}: make the "
            "database smaller, or remove the row"
        )


def _observe(result: Result) -> Observation:
    if result.status in _TIME_LIMITS:
        raise ToolError("the query took too long", ErrorKind.TIME_LIMIT)
    if problem := problem_of_database(result):
        raise ToolFailureError(f"tool sql: the database of the row cannot be made: {problem}")
    answers = read_answers(result)
    if answers is None:
        raise ToolError(f"the query could not be run: {result.status.value}", ErrorKind.EXECUTION_ERROR)
    ((answer,),) = answers
    if "error" in answer:
        raise ToolError(str(answer["error"]), ErrorKind.EXECUTION_ERROR)
    lines = [json.dumps(row, ensure_ascii=False) for row in answer["rows"]]
    return Observation("\n".join(lines) or "no rows")
