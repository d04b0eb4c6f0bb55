"""Answers that the policy's code forges, and tools that break: a call ends in an observation or a masked trajectory."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from tests.tools.test_toolset import kind, text, toolset
from verl_pivot.errors import ConfigError, PageError, SandboxError, SandboxRequestError, ToolBugError, ToolFailureError
from verl_pivot.sandbox.execution import Result, SessionState, Status
from verl_pivot.tools.calls import CallOutcome, Toolbox
from verl_pivot.tools.code_tools import Bash, CodeToolOptions, JupyterCell
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, JsonObject, ToolCall

TOOLS = "- tool: jupyter_code\n  tell_seconds: False\n- tool: bash\n  tell_seconds: False\n"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.from_regex(r"-?\d{1,9}", fullmatch=True)
FORGED_RESULTS = st.builds(
    Result,
    status=st.sampled_from(Status),
    value=st.none() | ANY_TEXT,
    error=st.none() | ANY_TEXT,
    stdout=ANY_TEXT,
    stderr=ANY_TEXT,
    stdout_bytes=st.integers(0, 10**6),
    stdout_truncated=st.booleans(),
    signal=st.none() | st.integers(1, 64),
    exit_code=st.none() | st.integers(0, 255),
    session=st.just(SessionState(id="s", epoch=1, num_cells=1)),
)


class ForgedWorkspace(Workspace):
    """Workspace whose session answers every cell with one result."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self._result = result

    async def run_cell(self, code: str, limits: object) -> Result:
        return self._result


class BrokenTool:
    """Tool that raises one exception, or returns one object."""

    schema: JsonObject = {"type": "function", "function": {"name": "broken", "parameters": {"type": "object"}}}  # noqa: RUF012
    policy = CallPolicy()

    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome  # type: ignore[no-any-return]  # the point of these tests


def outcome_of(tool: Any, name: str, arguments: JsonObject, workspace: Workspace | None = None) -> CallOutcome:
    toolbox = Toolbox(tools={name: tool}, workspace=workspace or Workspace())
    (outcome,) = asyncio.run(toolbox.run([ToolCall(name=name, arguments=arguments)]))
    return outcome


@given(FORGED_RESULTS)
@pytest.mark.finding("answers that end a training run", where="no service")
def test_whatever_a_session_answers_is_an_observation(result: Result) -> None:
    options = CodeToolOptions()
    for tool, name, arguments in ((Bash(options), "bash", "command"), (JupyterCell(options), "jupyter_code", "code")):
        outcome = outcome_of(tool, name, {arguments: "true"}, ForgedWorkspace(result))

        assert outcome.failure == ""
        assert outcome.observation is not None
        outcome.observation.text.encode()
        if result.status is not Status.OK:
            assert outcome.observation.error is not None


@pytest.mark.parametrize("value", ["0", "-15", "255"])
def test_a_real_exit_code_decides_about_a_command(value: str) -> None:
    outcome = outcome_of(
        Bash(CodeToolOptions()), "bash", {"command": "true"}, ForgedWorkspace(Result(status=Status.OK, value=value))
    )

    assert kind(outcome) is (None if value == "0" else ErrorKind.EXECUTION_ERROR)


@pytest.mark.parametrize("value", [None, "", "x", "0x0", "00000", "+0", " 0", "0\n", "\u0660", "1_0", "9" * 5000])
@pytest.mark.finding("answers that end a training run", where="no service")
def test_a_value_that_is_no_exit_code_is_an_error_of_the_command(value: str | None) -> None:
    outcome = outcome_of(
        Bash(CodeToolOptions()), "bash", {"command": "true"}, ForgedWorkspace(Result(status=Status.OK, value=value))
    )

    assert (outcome.failure, kind(outcome)) == ("", ErrorKind.EXECUTION_ERROR)


MISTAKES = (ToolError("no"), ValueError("no"), PageError("no"), SandboxRequestError("no"), ValueError("\ud800"))
FAILURES = (OSError(5, "no"), SandboxError("no"), ToolFailureError("no"), TimeoutError("no"), ConfigError("no"))
BUGS = (
    *(KeyError("no"), TypeError("no"), RecursionError(), MemoryError(), AssertionError(), StopAsyncIteration()),
    *(
        SystemExit(3),
        NotImplementedError(),
        ZeroDivisionError(),
        ToolBugError("no"),
        BaseExceptionGroup("", [OSError()]),
        asyncio.CancelledError(),  # of a task that the tool waited for: nobody cancels the rollout
    ),
)
WRONG_RESULTS = (None, "text", b"bytes", 5, Observation(None), Observation(b"x"))  # type: ignore[arg-type]


@pytest.mark.parametrize("raised", MISTAKES, ids=repr)
def test_a_tool_that_refuses_is_read_by_the_policy(raised: Exception) -> None:
    outcome = outcome_of(BrokenTool(raised), "broken", {})

    assert (outcome.failure, kind(outcome)) == ("", ErrorKind.REFUSED)
    text(outcome).encode()


@pytest.mark.parametrize("outcome", [*FAILURES, *BUGS, *WRONG_RESULTS], ids=repr)
@pytest.mark.finding("answers that end a training run", where="no service")
def test_a_tool_that_breaks_masks_the_trajectory(outcome: Any) -> None:
    answered = outcome_of(BrokenTool(outcome), "broken", {})

    assert answered.observation is None
    assert answered.failure
    assert answered.is_bug == (outcome in (*BUGS, *WRONG_RESULTS))


@pytest.mark.finding("answers that end a training run", where="no service")
def test_half_of_a_surrogate_pair_in_a_result_is_read_by_the_policy_as_its_escape() -> None:
    outcome = outcome_of(BrokenTool(Observation("a\ud800b")), "broken", {})

    assert (outcome.failure, text(outcome)) == ("", "a\\ud800b")


PATCHED = """
import subprocess
class Forged:
    returncode = {returncode}
subprocess.run = lambda *args, **options: Forged
"""


@needs_sandbox
@pytest.mark.parametrize("returncode", ["'no number'", "None", "10**5000", "object()", "'\\ud800'"])
@pytest.mark.finding("answers that end a training run")
async def test_a_cell_that_patches_how_commands_run_only_spoils_its_own_commands(
    returncode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_service(monkeypatch)
    patch = ToolCall(name="jupyter_code", arguments={"code": PATCHED.format(returncode=returncode)})
    command = ToolCall(name="bash", arguments={"command": "echo hello"})

    async with toolset(tmp_path, TOOLS).open({}) as trajectory:
        outcomes = await trajectory.toolbox.run([patch, command])

    assert [outcome.failure for outcome in outcomes] == ["", ""]
    assert [kind(outcome) for outcome in outcomes] == [None, ErrorKind.EXECUTION_ERROR]
    json.dumps(text(outcomes[1]))
