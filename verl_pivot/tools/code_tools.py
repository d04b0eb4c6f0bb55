"""Built-in tools that run the policy's code: rStar2-Agent's two (arXiv:2508.20722, section 2.1), and a shell."""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from verl_pivot.data.tools import text_schema
from verl_pivot.sandbox.execution import MIB, Limits, Result, Status
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.sandbox.tool_response import render_tool_response
from verl_pivot.tools.contract import ErrorKind, Observation
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject

_TIME = frozenset({Status.TIMEOUT, Status.CPU_LIMIT, Status.COMPILE_TIMEOUT})
_RUN_COMMAND = "__import__('subprocess').run(['bash', '-c', {!r}], stdin=-3, stderr=-2).returncode"
"""As a cell: nothing at its standard input (DEVNULL), both outputs in one (STDOUT), and its value the exit code."""


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


class CodeOptions(BaseModel):
    """Of a tool that runs code in the sandbox."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Of one call."""
    memory_mib: Annotated[int, Field(ge=16)] = 1024
    max_characters: Annotated[int, Field(ge=16)] = 4096
    """Of stdout and stderr each, before the rollout's own limit in tokens."""
    tell_seconds: bool = True
    """Whether the policy reads how long its program took; without it equal programs give equal texts."""

    @property
    def limits(self) -> Limits:
        return Limits(
            wall_seconds=self.wall_seconds,
            cpu_seconds=max(1, math.ceil(self.wall_seconds)),
            memory_bytes=self.memory_mib * MIB,
        )


class _CodeTool(ABC):
    """What the three share. The sandbox's client makes calls again where that is harmless, so this does not."""

    retries = 0
    timeout_seconds = math.inf
    tells_timeouts = False

    def __init__(self, options: CodeOptions, schema: JsonObject) -> None:
        self.schema = schema
        self._options = options

    @abstractmethod
    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation: ...

    def _observe(self, result: Result) -> Observation:
        options = self._options
        text = render_tool_response(result, max_characters=options.max_characters, with_time=options.tell_seconds)
        if result.status is Status.OK:
            return Observation(text)
        return Observation(text, ErrorKind.TIME_LIMIT if result.status in _TIME else ErrorKind.EXECUTION_ERROR)


class PythonProgram(_CodeTool):
    """Runs a program from its beginning, with text on its standard input."""

    def __init__(self, options: CodeOptions) -> None:
        super().__init__(options, _PROGRAM)

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        sandbox = await shared_sandbox()
        result = await sandbox.run(
            str(arguments["code"]), stdin=str(arguments.get("input", "")), limits=self._options.limits
        )
        return self._observe(result)


class JupyterCell(_CodeTool):
    """Runs a cell in the trajectory's interpreter, which keeps its variables.

    rStar2's released tool runs all cells before it again in a new process; here the interpreter lives on.
    """

    def __init__(self, options: CodeOptions) -> None:
        super().__init__(options, _CELL)

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        return self._observe(await workspace.run_cell(str(arguments["code"]), self._options.limits))


class Bash(_CodeTool):
    """Runs a command in the trajectory's folder, whose files stay; each command is a shell of its own."""

    def __init__(self, options: CodeOptions) -> None:
        super().__init__(options, _BASH)

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        cell = _RUN_COMMAND.format(str(arguments["command"]))
        result = await workspace.run_cell(cell, self._options.limits)
        return self._observe(_of_command(result))


def _of_command(result: Result) -> Result:
    """A cell's result as that of the command in it; what the cell itself wrote to stderr is not the command's."""
    if result.status is not Status.OK or result.value is None:
        return replace(result, stderr="", stderr_truncated=False)
    exit_code = int(result.value)
    return replace(result, value=None, exit_code=exit_code, status=Status.ERROR if exit_code else Status.OK)
