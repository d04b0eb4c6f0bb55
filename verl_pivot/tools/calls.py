"""Calls of one turn -> what the policy reads, and a record of each: checks, retries, whose fault a failure was."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from verl_pivot.data.arguments import ArgumentProblem, tool_schemas
from verl_pivot.data.storage import BadRowError, encode_json
from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError, ToolFailureError
from verl_pivot.tools.contract import ErrorKind, Observation, Tool, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject, Malformed, ToolCall
from verl_pivot.verifiers.json_values import is_too_deep

_MAX_DETAIL = 500


class CallStatus(StrEnum):
    OK = "ok"
    TOOL_ERROR = "tool_error"
    """The policy's mistake; it was told."""
    SYSTEM_FAILURE = "system_failure"
    """Ends the trajectory, which is masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call of a trajectory, for metrics, resampling and dumps."""

    turn: int
    """Of the policy, from 0."""
    name: str
    """Empty where the call could not be read."""
    arguments: JsonObject | None
    """None where the call could not be read."""
    status: CallStatus
    error_kind: ErrorKind | None = None
    """With status tool_error."""
    seconds: float = 0.0
    num_tokens: int = 0
    """Of what the policy read."""
    truncated: bool = False
    """Whether its middle was left out."""
    detail: str = ""
    """With status system_failure: why."""

    def as_dict(self) -> JsonObject:
        return {
            "turn": self.turn,
            "name": self.name,
            "arguments": self.arguments,
            "status": self.status.value,
            "error_kind": None if self.error_kind is None else self.error_kind.value,
            "seconds": round(self.seconds, 6),
            "num_tokens": self.num_tokens,
            "truncated": self.truncated,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """What came of one call; without an observation the system failed."""

    call: ToolCall | Malformed
    observation: Observation | None
    seconds: float = 0.0
    failure: str = ""


@dataclass(slots=True, kw_only=True)
class Toolbox:
    """The tools of one trajectory, and what they share."""

    tools: dict[str, Tool]
    workspace: Workspace = field(default_factory=Workspace)
    max_calls_per_turn: int = 16
    parallel: bool = False

    @property
    def schemas(self) -> list[JsonObject]:
        return [tool.schema for tool in self.tools.values()]

    async def run(self, calls: Sequence[ToolCall | Malformed]) -> list[CallOutcome]:
        """The outcome of each call, in order; one by one, after a failure of the system the rest is not begun."""
        if self.parallel:
            return list(await asyncio.gather(*(self._run(call, number) for number, call in enumerate(calls))))
        outcomes: list[CallOutcome] = []
        for number, call in enumerate(calls):
            outcomes.append(await self._run(call, number))
            if outcomes[-1].failure:
                break
        return outcomes

    async def _run(self, call: ToolCall | Malformed, number: int) -> CallOutcome:
        if number >= self.max_calls_per_turn:
            text = f"only the first {self.max_calls_per_turn} calls of a turn are run"
            return _refused(call, ErrorKind.TOO_MANY_CALLS, text)
        if isinstance(call, Malformed):
            return _refused(call, ErrorKind.MALFORMED_CALL, call.detail)
        tool = self.tools.get(call.name)
        if tool is None:
            text = f"there is no tool {call.name!r}; the tools are {', '.join(self.tools) or 'none'}"
            return _refused(call, ErrorKind.UNKNOWN_TOOL, text)
        problem = _problem(call, tool)
        if problem is not None and problem.is_of_schema:
            return CallOutcome(call=call, observation=None, failure=f"tool {call.name}: {problem.detail}")
        if problem is not None:
            kind = ErrorKind.MISSING_ARGUMENT if problem.is_missing else ErrorKind.INVALID_ARGUMENT
            return _refused(call, kind, problem.detail)
        return await self._answer(call, tool)

    async def _answer(self, call: ToolCall, tool: Tool) -> CallOutcome:
        began = time.monotonic()
        observation, failure = None, ""
        try:
            observation = await _with_retries(call, tool, self.workspace)
            observation.text.encode()
        except ToolError as error:
            observation = Observation(failure_text(str(error)), error.kind)
        except UnicodeEncodeError as error:
            observation, failure = None, f"tool {call.name} gave back text that is no Unicode: {error.reason}"
        except SandboxRequestError as error:  # such as a program of many megabytes
            observation = Observation(failure_text(str(error)), ErrorKind.REFUSED)
        except (ToolFailureError, SandboxError) as error:
            failure = str(error)[:_MAX_DETAIL]
        return CallOutcome(call=call, observation=observation, seconds=time.monotonic() - began, failure=failure)


def _problem(call: ToolCall, tool: Tool) -> ArgumentProblem | None:
    if is_too_deep(call.arguments):
        return ArgumentProblem("the arguments are nested too deeply")
    try:
        encode_json(call.arguments)
    except BadRowError as error:  # NaN, or half of a surrogate pair
        return ArgumentProblem(str(error))
    return tool_schemas(encode_json([tool.schema]))[call.name].problem(call.arguments)


def failure_text(reason: str) -> str:
    """What the policy reads of a mistake, in the frame of rStar2-Agent's tools (`sandbox.tool_response`)."""
    return f"Tool call failure\nreason: error, {reason}"


def _refused(call: ToolCall | Malformed, kind: ErrorKind, reason: str) -> CallOutcome:
    return CallOutcome(call=call, observation=Observation(failure_text(reason), kind))


async def _with_retries(call: ToolCall, tool: Tool, workspace: Workspace) -> Observation:
    attempts = AsyncRetrying(
        stop=stop_after_attempt(1 + tool.retries),
        wait=wait_random_exponential(multiplier=0.2, max=5.0),
        retry=retry_if_exception(_is_worth_another_try),
        reraise=True,
    )
    async for attempt in attempts:
        with attempt:
            try:
                async with asyncio.timeout(tool.timeout_seconds):
                    return await tool.call(call.arguments, workspace)
            except TimeoutError as error:
                text = f"tool {call.name} did not answer within {tool.timeout_seconds:g} s"
                if tool.tells_timeouts:
                    raise ToolError(text, ErrorKind.TIME_LIMIT) from error
                raise _HungError(text) from error
    raise AssertionError("tenacity ends with a result or raises")


class _HungError(ToolFailureError):
    """Not tried again: what it does may still go on."""


def _is_worth_another_try(error: BaseException) -> bool:
    is_final = isinstance(error, SessionLostError | _HungError)
    return isinstance(error, ToolFailureError | SandboxError) and not is_final
