"""Tool `sql`: one query that reads the row's database -> its rows as text. Runs in the sandbox, on a copy."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from verl_pivot.data.tools import text_schema
from verl_pivot.errors import ToolFailureError
from verl_pivot.sandbox.execution import Program, Result, Status
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.tools.contract import ErrorKind, Observation, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject
from verl_pivot.verifiers.query_program import answers_of, query_program

if TYPE_CHECKING:
    from verl_pivot.tools.toolset import SqlEntry

_TIME = (Status.TIMEOUT, Status.CPU_LIMIT)
_SCHEMA = text_schema(
    "sql", "Run one SQL query that only reads; its rows come back, one a line.", {"query": "The query."}
)


class SqlTool:
    """Reads `metadata.database` (a file in the tool's folder) or `metadata.script` (statements that make one)."""

    schema = _SCHEMA
    retries = 0
    timeout_seconds = math.inf
    tells_timeouts = False

    def __init__(self, entry: "SqlEntry") -> None:
        self._entry = entry

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        result = await (await shared_sandbox()).run_many([self._program(str(arguments["query"]), workspace)])
        return _observe(result[0])

    def _program(self, query: str, workspace: Workspace) -> Program:
        entry, database, script = self._entry, workspace.metadata.get("database"), workspace.metadata.get("script")
        if isinstance(script, str):
            files: list[Path] = []
            scripts = [script]
        elif isinstance(database, str) and entry.folder is not None:
            files, scripts = [self._file(entry.folder, database)], []
        else:
            raise ToolFailureError(
                "tool sql: the row needs metadata.script, or metadata.database and the tool a folder"
            )
        return query_program(
            query, dialect=entry.dialect, databases=files, scripts=scripts,
            wall_seconds=entry.wall_seconds, max_rows=entry.max_rows,
        )  # fmt: skip

    @staticmethod
    def _file(folder: Path, database: str) -> Path:
        path = (folder / database).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise ToolFailureError(f"tool sql: there is no database {database!r} in {folder}")
        return path


def make_tool(entry: "SqlEntry") -> SqlTool:
    return SqlTool(entry)


def _observe(result: Result) -> Observation:
    if result.status in _TIME:
        raise ToolError("the query took too long", ErrorKind.TIME_LIMIT)
    answers = answers_of(result)
    if answers is None:
        raise ToolError(f"the query could not be run: {result.status.value}", ErrorKind.EXECUTION_ERROR)
    (answer,) = answers
    if "error" in answer:
        raise ToolError(str(answer["error"]), ErrorKind.EXECUTION_ERROR)
    lines = [json.dumps(row, ensure_ascii=False) for row in answer["rows"]]
    return Observation("\n".join(lines) or "no rows")
