"""Tools that run the policy's code in the sandbox: a Python program, a notebook cell, a bash command."""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from verl_pivot.data.tool_schemas import text_schema
from verl_pivot.errors import ToolFailureError
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status
from verl_pivot.tools.contract import CallPolicy, Observation
from verl_pivot.tools.registry import register_tool
from verl_pivot.tools.tool_response import render_tool_response
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, JsonObject
from verl_pivot.validation import Options
from verl_pivot.verifiers.sandboxed import execute

_TIME_LIMITS = frozenset({Status.TIMEOUT, Status.CPU_LIMIT, Status.COMPILE_TIMEOUT})
_RUN_COMMAND = "__import__('subprocess').run(['bash', '-c', {!r}], stdin=-3, stderr=-2).returncode"
"""Cell that runs a command without standard input (-3: DEVNULL), with stderr in stdout (-2: STDOUT).

The cell's value is the exit code.
"""
_NO_CORE = "the machine had no core for the code within its time limit; give the sandbox more cores or fewer rollouts"
_EXIT_CODE = re.compile(r"-?[0-9]{1,3}")
"""Return code of a command; negative for the signal that ended it."""

_PROGRAM = text_schema(
    "python_code_with_standard_io",
    "Run a Python program with the given standard input; what it prints comes back.",
    {"code": "The program.", "input": "Its standard input, empty if it reads none."},
)
_CELL = text_schema(
    "jupyter_code",
    "Run a Python cell; variables stay for the next one, the last expression is shown.",
    {"code": "The cell."},
)
_BASH = text_schema(
    "bash",
    "Run a bash command; files stay for the next one, variables and the directory do not.",
    {"command": "The command."},
)


class CodeToolOptions(Options):
    """Options of a tool that runs code in the sandbox."""

    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Seconds that one call may run."""
    memory_mib: Annotated[int, Field(ge=16)] = 1024
    """Memory of the code, in MiB."""
    max_characters: Annotated[int, Field(ge=16)] = 4096
    """Most characters of stdout and of stderr each; `pivot.rollout.max_observation_tokens` limits the text further."""
    tell_seconds: bool = True
    """Whether the policy reads how long its code ran; if it does not, equal programs give equal texts."""

    @property
    def limits(self) -> Limits:
        return Limits(
            wall_seconds=self.wall_seconds,
            cpu_seconds=max(1, math.ceil(self.wall_seconds)),
            memory_bytes=self.memory_mib * MIB,
        )


class _CodeTool(ABC):
    """Base of the three tools that run code in the sandbox."""

    policy = CallPolicy(timeout_seconds=None)  # the sandbox limits the time, and its client retries what may run twice

    def __init__(self, options: CodeToolOptions, schema: JsonObject) -> None:
        self.schema = schema
        self._options = options

    @abstractmethod
    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation: ...

    def _observe(self, result: Result) -> Observation:
        if result.had_no_core:
            raise ToolFailureError(_NO_CORE)
        options = self._options
        text = render_tool_response(result, max_characters=options.max_characters, with_time=options.tell_seconds)
        if result.status is Status.OK:
            return Observation(text)
        return Observation(text, ErrorKind.TIME_LIMIT if result.status in _TIME_LIMITS else ErrorKind.EXECUTION_ERROR)


@register_tool("python_code_with_standard_io", options=CodeToolOptions)
class PythonProgram(_CodeTool):
    """Runs a program from its beginning, with text on its standard input.

    Source: rStar2-Agent (arXiv:2508.20722), section 2.1.
    """

    def __init__(self, options: CodeToolOptions) -> None:
        super().__init__(options, _PROGRAM)

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        code, stdin = str(arguments["code"]), str(arguments.get("input", ""))
        (result,) = await execute([Program(code=code, stdin=stdin, limits=self._options.limits)])
        return self._observe(result)


@register_tool("jupyter_code", options=CodeToolOptions)
class JupyterCell(_CodeTool):
    """Runs a cell in the rollout's interpreter, which keeps its variables.

    Source: rStar2-Agent (arXiv:2508.20722), section 2.1. Its released code runs all earlier cells again in a new
    process; here the interpreter lives on.
    """

    def __init__(self, options: CodeToolOptions) -> None:
        super().__init__(options, _CELL)

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        return self._observe(await workspace.run_cell(str(arguments["code"]), self._options.limits))


@register_tool("bash", options=CodeToolOptions)
class Bash(_CodeTool):
    """Runs a command in the rollout's folder, whose files are kept; each command has a shell of its own."""

    def __init__(self, options: CodeToolOptions) -> None:
        super().__init__(options, _BASH)

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        cell = _RUN_COMMAND.format(str(arguments["command"]))
        result = await workspace.run_cell(cell, self._options.limits)
        return self._observe(_command_result(result))


def _command_result(result: Result) -> Result:
    """Result of the command that a cell ran; stderr of the cell itself is left out.

    The command shares the session with the cell, so it can forge the cell's value. A value that is no exit code is an
    error.
    """
    is_exit_code = _EXIT_CODE.fullmatch(result.value or "") is not None
    if result.status is not Status.OK or not is_exit_code:
        status = Status.ERROR if result.status is Status.OK else result.status
        return replace(result, value=None, status=status, stderr="", stderr_truncated=False)
    exit_code = int(result.value or "")
    return replace(result, value=None, exit_code=exit_code, status=Status.ERROR if exit_code else Status.OK)
