"""Tools that run code in the sandbox: their observations, and one session per trajectory, which is always closed."""

import asyncio
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from tests.support.scripted_engine import call, make_loop, row
from tests.tools.test_toolset import kind, one_call, text, toolset
from verl_pivot.errors import ToolFailureError
from verl_pivot.sandbox.execution import Result, Status
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.tools.code_tools import CodeToolOptions, JupyterCell, PythonProgram
from verl_pivot.tools.contract import ToolError
from verl_pivot.tools.sql import _observe as observation_of
from verl_pivot.tools.toolset import Toolset
from verl_pivot.types import ErrorKind, JsonObject, ToolCall
from verl_pivot.verifiers import sql_program

pytestmark = needs_sandbox
CODE = "- tool: python_code_with_standard_io\n  tell_seconds: False\n- tool: jupyter_code\n  tell_seconds: False\n"
BASH = "- tool: bash\n  tell_seconds: False\n  wall_seconds: 2\n"
SAMPLING = {"temperature": 1.0, "logprobs": True}


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def num_sessions() -> int:
    """Number of open sessions of this test's client, over all nodes."""
    sandbox = await shared_sandbox()
    assert sandbox._connection is not None
    return sum(node.num_sessions for node in sandbox._connection.nodes)


async def play(tools: Toolset, *calls: ToolCall, **columns: Any) -> list[tuple[str, ErrorKind | None]]:
    async with tools.open(columns) as trajectory:
        outcomes = await trajectory.toolbox.run(calls)
    return [(text(outcome), kind(outcome)) for outcome in outcomes]


def cell(code: str) -> ToolCall:
    return ToolCall(name="jupyter_code", arguments={"code": code})


def shell(command: str) -> ToolCall:
    return ToolCall(name="bash", arguments={"command": command})


async def test_a_program_reads_its_input(tmp_path: Path) -> None:
    program = ToolCall(name="python_code_with_standard_io", arguments={"code": "print(input())", "input": "42"})

    assert await play(toolset(tmp_path, CODE), program) == [("Tool call success\nstdout: 42", None)]


async def test_variables_are_kept_within_a_trajectory_and_not_beyond(tmp_path: Path) -> None:
    tools = toolset(tmp_path, CODE)

    first = await play(tools, cell("x = 41"), cell("x + 1"))
    (other, error), *_ = await play(tools, cell("x"))

    assert first == [("Tool call success", None), ("Tool call success\nstdout: 42", None)]
    assert error is ErrorKind.EXECUTION_ERROR
    assert "NameError" in other
    assert await num_sessions() == 0


async def test_bash_keeps_files_between_commands_and_shows_exit_codes(tmp_path: Path) -> None:
    tools = toolset(tmp_path, BASH)

    results = await play(
        tools,
        shell("echo hello > greeting; ls"),
        shell("cat greeting >&2; exit 3"),
        shell("sleep 30"),
        shell("cat greeting"),
    )

    assert results[0] == ("Tool call success\nstdout: greeting", None)
    failure = "Tool call failure\nreason: execution error, exit code 3\nstdout: hello"
    assert results[1] == (failure, ErrorKind.EXECUTION_ERROR)
    assert results[2][1] is ErrorKind.TIME_LIMIT
    assert "Traceback" not in results[2][0]
    assert results[3] == ("Tool call success\nstdout: hello", None)


@pytest.mark.parametrize(
    ("query", "expected", "error"),
    [
        ("select name, amount from orders order by amount", '["lamp", 3]\n["desk", 40]', None),
        ("select name from orders where amount > 99", "no rows", None),
        ("select colour from orders", "no such column: colour", ErrorKind.EXECUTION_ERROR),
        ("delete from orders", "attempt to write a readonly database", ErrorKind.EXECUTION_ERROR),
    ],
)
@pytest.mark.parametrize("source", ["script", "database"])
async def test_sql_reads_the_database_of_the_row(
    tmp_path: Path, source: str, query: str, expected: str, error: ErrorKind | None
) -> None:
    script = "create table orders (name text, amount int); insert into orders values ('desk', 40), ('lamp', 3);"
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.executescript(script)
    connection.close()
    tools = toolset(tmp_path, f"- tool: sql\n  folder: {tmp_path}\n")
    metadata = {"script": f'{{"script": "{script}"}}', "database": '{"database": "shop.db"}'}[source]

    outcome = await one_call(tools, ToolCall(name="sql", arguments={"query": query}), metadata=metadata)

    assert expected in text(outcome)
    assert kind(outcome) is error


@pytest.mark.parametrize("database", ["../../etc/passwd", "nothing.db"])
async def test_sql_of_a_database_that_is_not_in_the_folder_is_a_failure(tmp_path: Path, database: str) -> None:
    tools = toolset(tmp_path, f"- tool: sql\n  folder: {tmp_path}\n")

    outcome = await one_call(
        tools, ToolCall(name="sql", arguments={"query": "select 1"}), metadata=f'{{"database": "{database}"}}'
    )

    assert outcome.failure.startswith(f"tool sql: there is no database '{database}'")


@pytest.mark.parametrize("source", ["database", "script"])
async def test_sql_of_a_database_that_is_too_large_is_a_failure(tmp_path: Path, source: str) -> None:
    too_large = 8 * 1024**2 - 64 * 1024 + 1
    (tmp_path / "large.db").write_bytes(b"\0" * too_large)
    metadata = {"database": "large.db"} if source == "database" else {"script": "-" * (too_large - 2)}
    tools = toolset(tmp_path, f"- tool: sql\n  folder: {tmp_path}\n")

    outcome = await one_call(
        tools, ToolCall(name="sql", arguments={"query": "select 1"}), metadata=json.dumps(metadata)
    )

    assert outcome.observation is None
    assert outcome.failure == (
        f"tool sql: metadata.{source} has {too_large} bytes, but the sandbox takes at most {too_large - 1}: make the "
        "database smaller, or remove the row"
    )


async def test_a_query_that_is_too_large_for_the_sandbox_is_the_policys_mistake(tmp_path: Path) -> None:
    query = ToolCall(name="sql", arguments={"query": f"select '{'x' * 9_000_000}'"})

    outcome = await one_call(toolset(tmp_path, "- tool: sql\n"), query, metadata='{"script": "create table t (n)"}')

    assert kind(outcome) is ErrorKind.REFUSED


@pytest.mark.parametrize(
    ("dialect", "metadata", "cause"),
    [
        ("sqlite", {"script": "create tabel t (n)"}, 'OperationalError: near "tabel": syntax error'),
        ("duckdb", {"script": "create tabel t (n)"}, "ParserException: Parser Error: syntax error"),
        ("sqlite", {"database": "text.db"}, "DatabaseError: file is not a database"),
        ("duckdb", {"database": "text.db"}, "IOException: IO Error: "),
    ],
)
async def test_sql_of_a_database_that_cannot_be_made_is_a_failure(
    tmp_path: Path, dialect: str, metadata: JsonObject, cause: str
) -> None:
    (tmp_path / "text.db").write_text("This text is no database.\n" * 100)
    tools = toolset(tmp_path, f"- tool: sql\n  dialect: {dialect}\n  folder: {tmp_path}\n")

    outcome = await one_call(
        tools, ToolCall(name="sql", arguments={"query": "select 1"}), metadata=json.dumps(metadata)
    )

    assert outcome.observation is None
    assert outcome.failure.startswith(f"tool sql: the database of the row cannot be made: {cause}")


async def test_sql_without_the_package_of_its_dialect_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sql_program, "_RUNNER", sql_program._RUNNER.replace('"duckdb"', '"duckdb_of_no_machine"'))
    tools = toolset(tmp_path, "- tool: sql\n  dialect: duckdb\n")

    outcome = await one_call(
        tools, ToolCall(name="sql", arguments={"query": "select 1"}), metadata='{"script": "create table t (n int)"}'
    )

    assert outcome.failure == (
        "tool sql: the database of the row cannot be made: ModuleNotFoundError: No module named 'duckdb_of_no_machine'"
    )


@pytest.mark.parametrize("status", [Status.MEMORY_LIMIT, Status.SIGNALED, Status.OK])
def test_a_query_that_needs_too_much_memory_or_output_is_the_policys_mistake(status: Status) -> None:
    with pytest.raises(ToolError, match=f"the query could not be run: {status.value}") as caught:
        observation_of(Result(status=status))
    assert caught.value.kind is ErrorKind.EXECUTION_ERROR


async def test_a_trajectory_that_is_cancelled_leaves_no_session_behind(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(CODE)
    script = [
        call("jupyter_code", code="x = 1"),
        call("jupyter_code", code="import time; time.sleep(60)"),
        "Never said.",
    ]
    loop = make_loop(script, f"pivot.rollout.tools={tmp_path}/tools.yaml")
    task = asyncio.create_task(loop.run(SAMPLING, **row()))
    while len(loop.server_manager.requests) < 2:  # noqa: ASYNC110  there is no event to wait for
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    assert await num_sessions() == 1

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert await num_sessions() == 0


async def test_a_lost_session_is_a_failure_and_not_replaced_by_a_new_one(tmp_path: Path) -> None:
    async with toolset(tmp_path, CODE).open({}) as trajectory:
        await trajectory.toolbox.run([cell("x = 1")])
        session, connection = trajectory.toolbox.workspace._session, (await shared_sandbox())._connection
        assert session is not None
        assert connection is not None
        path = f"/v1/sessions/{session.id}?client={connection.session_sender.client}"
        await connection.transport.delete(connection.nodes[0], path)

        (outcome,) = await trajectory.toolbox.run([cell("x")])

    assert outcome.observation is None
    assert f"session {session.id} is lost" in outcome.failure


@pytest.mark.parametrize("tool", [JupyterCell, PythonProgram])
def test_a_time_out_for_want_of_a_core_is_no_observation(tool: type[JupyterCell] | type[PythonProgram]) -> None:
    result = Result(status=Status.TIMEOUT, had_no_core=True)

    with pytest.raises(ToolFailureError, match="had no core"):
        tool(CodeToolOptions())._observe(result)
    assert tool(CodeToolOptions())._observe(replace(result, had_no_core=False)).error is ErrorKind.TIME_LIMIT
