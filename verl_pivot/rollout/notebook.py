"""Notebook: code of a step -> RanCell, in a session of the sandbox that begins with a Notepad."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from verl_pivot.data.rollout_records import CallRecord, StopReason
from verl_pivot.errors import SandboxError, SandboxRequestError, ToolBugError, ToolFailureError
from verl_pivot.rollout.cell_calls import CellCalls, functions_of
from verl_pivot.rollout.notebook_output import CellOutput, cell_output
from verl_pivot.rollout.notepad import EMPTY_NOTEPAD, READ_NOTEPAD, NotepadReading, make_notepad, read_notepad
from verl_pivot.sandbox.execution import Limits, Result, Status
from verl_pivot.sandbox.host_functions import AnswerCall, CallLimits, HostFunction
from verl_pivot.tools.calls import Toolbox

_MAX_TOOL_SECONDS = 1800.0
"""Seconds that a call of a tool without a time limit of its own may take."""
_MARGIN_SECONDS = 60.0
_OWN_CELL_SECONDS = 5.0
"""Wall seconds of the cells that make and read the Notepad."""
_NO_CORE = "the machine had no core for the code within its time limit; give the sandbox more cores or fewer rollouts"


CALL_LIMITS = CallLimits()


class CellRunner(Protocol):
    """The methods of a session of the sandbox that this module uses."""

    async def run(
        self,
        code: str,
        *,
        wall_seconds: float | None = None,
        answer_call: AnswerCall | None = None,
        call_limits: CallLimits = CALL_LIMITS,
    ) -> Result: ...

    async def close(self) -> None: ...


OpenRunner = Callable[[Sequence[HostFunction]], Awaitable[CellRunner]]
"""Opens a session whose cells may call these functions.

Raises SandboxError if the sandbox failed, and ToolFailureError if a session cannot be opened as the row asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCell:
    """Outcome of the code of one step."""

    output: CellOutput | None = None
    """What the cell showed; None if the step had no code to run, or the system failed."""
    calls: tuple[CallRecord, ...] = ()
    answer: str | None = None
    """The answer that was submitted in this step or before; None if there is none."""
    notepad: NotepadReading = EMPTY_NOTEPAD
    was_restarted: bool = False
    """Whether the interpreter was killed, and all variables are gone."""
    failure: str = ""
    """Description of a failure of the system, which masks the rollout; "" if nothing failed."""
    is_bug: bool = False
    """Whether the failure is one of a tool's own code."""

    def without_cell(self) -> "RanCell":
        """Outcome of a next step that has no code to run."""
        return RanCell(answer=self.answer, notepad=self.notepad)

    def stop_after(self, num_steps: int, max_steps: int, deadline: float) -> StopReason | None:
        """Why a rollout ends with the step that ran this code; None if it goes on.

        Args:
            num_steps: Steps so far.
            max_steps: Most steps of a rollout.
            deadline: Time of `time.monotonic` after which no step begins.
        """
        if self.failure:
            return StopReason.TOOL_FAILURE
        if self.answer is not None:
            return StopReason.ANSWERED
        if num_steps >= max_steps:
            return StopReason.MAX_TURNS
        return StopReason.MAX_WALL_SECONDS if time.monotonic() > deadline else None


class _Shown(NamedTuple):
    """What a cell showed, and whether its interpreter was killed."""

    output: CellOutput | None
    was_restarted: bool = False


class Notebook:
    """The notebook of one rollout; its session is opened by the first cell, and closed however the rollout ends."""

    def __init__(
        self,
        open_runner: OpenRunner,
        functions: Sequence[HostFunction],
        *,
        has_notepad: bool,
        call_limits: CallLimits = CALL_LIMITS,
    ) -> None:
        self._open_runner = open_runner
        self._functions = functions
        self._call_limits = call_limits
        self._has_notepad = has_notepad
        self._runner: CellRunner | None = None
        self._epoch: int | None = None
        """Number of the interpreter that the last cell left; None before the first cell."""
        self._notepad = EMPTY_NOTEPAD

    async def __aenter__(self) -> "Notebook":
        return self

    async def __aexit__(self, *_: object) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.close()

    async def run(self, code: str, calls: CellCalls) -> RanCell:
        """Run the code of one step, and read the Notepad afterwards."""
        shown, failure, is_bug = _Shown(None), "", False
        try:
            shown = await self._run(code, calls)
        except (ToolFailureError, SandboxError) as error:
            failure, is_bug = str(error), isinstance(error, ToolBugError)
        return RanCell(
            output=shown.output, calls=tuple(calls.records), answer=calls.answer, notepad=self._notepad,
            was_restarted=shown.was_restarted, failure=failure, is_bug=is_bug,
        )  # fmt: skip

    async def _run(self, code: str, calls: CellCalls) -> _Shown:
        """Run the code of a step.

        Raises:
            SandboxError: If the sandbox failed.
            ToolFailureError: If a tool failed.
        """
        if self._runner is None:
            self._runner = await self._open_runner(self._functions)
            await self._begin(self._runner)
        try:
            result = await self._runner.run(code, answer_call=calls.answer_call, call_limits=self._call_limits)
        except SandboxRequestError as error:  # code that no session accepts, such as code with a NUL byte
            return _Shown(CellOutput(str(error), 1, 1))
        if result.had_no_core:
            raise ToolFailureError(_NO_CORE)
        was_restarted = await self._follow(self._runner, result)
        if self._has_notepad and not was_restarted:
            was_restarted = await self._read_notepad(self._runner)
        return _Shown(cell_output(result), was_restarted)

    async def _begin(self, runner: CellRunner) -> None:
        """Run the cell that a fresh interpreter begins with.

        Raises:
            ToolFailureError: If it fails, which is never the policy's fault.
        """
        cell = make_notepad(self._notepad.notes) if self._has_notepad else ""
        result = await runner.run(cell, wall_seconds=_OWN_CELL_SECONDS)
        if result.status is not Status.OK:
            raise ToolFailureError(f"a fresh notebook could not be prepared: {result.error or result.status}")
        self._notepad = NotepadReading(self._notepad.notes)
        self._epoch = _epoch(result)

    async def _read_notepad(self, runner: CellRunner) -> bool:
        """Read the Notepad, which the policy may have redefined; return whether that killed the interpreter."""
        result = await runner.run(READ_NOTEPAD, wall_seconds=_OWN_CELL_SECONDS)
        if result.had_no_core:
            raise ToolFailureError(_NO_CORE)
        self._notepad = read_notepad(result, self._notepad.notes)
        return await self._follow(runner, result)

    async def _follow(self, runner: CellRunner, result: Result) -> bool:
        """Prepare the interpreter anew if the cell left a fresh one, and return whether it did."""
        if _epoch(result) == self._epoch:
            return False
        await self._begin(runner)
        return True


def notebook_of(toolbox: Toolbox, *, has_notepad: bool, max_calls: int) -> Notebook:
    """The notebook of a rollout, in a session of its workspace, with its tools as functions.

    Args:
        toolbox: Tools of the rollout.
        has_notepad: Whether the notebook has a Notepad.
        max_calls: Most calls of functions in one cell.

    Raises:
        ConfigError: If a tool cannot be a function there.
    """

    async def open_runner(functions: Sequence[HostFunction]) -> CellRunner:
        runner: CellRunner = await toolbox.workspace.open_session(Limits(), functions)
        return runner

    limits = CallLimits(max_calls=max_calls, reply_seconds=_reply_seconds(toolbox))
    return Notebook(open_runner, functions_of(toolbox.schemas), has_notepad=has_notepad, call_limits=limits)


def _reply_seconds(toolbox: Toolbox) -> float:
    """Seconds within which every tool of a rollout has answered, since its own limits end its calls earlier."""
    policies = [tool.policy for tool in toolbox.tools.values()]
    longest = max((policy.timeout_seconds or _MAX_TOOL_SECONDS for policy in policies), default=0.0)
    return longest * (1 + max((policy.retries for policy in policies), default=0)) + _MARGIN_SECONDS


def _epoch(result: Result) -> int:
    assert result.session is not None, result
    return result.session.epoch
