"""Calls of one turn -> CallOutcomes: calls are checked against the schemas, run, and retried after failures."""

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from verl_pivot.data.json_values import BadRowError, encode_json, is_too_deep
from verl_pivot.data.tool_schemas import ArgumentProblem, schemas_by_name
from verl_pivot.errors import (
    PageError,
    PivotError,
    SandboxError,
    SandboxRequestError,
    SessionLostError,
    SnapshotError,
    ToolBugError,
    ToolFailureError,
    UserCodeError,
)
from verl_pivot.tools.contract import Observation, OnTimeout, Tool, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, JsonObject, Malformed, ToolCall
from verl_pivot.user_code import code_error, ends_this_task, named

_MAX_DETAIL = 500
"""Characters of a failure's description that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """Outcome of one call: an observation, or a failure of the system."""

    call: ToolCall | Malformed
    observation: Observation | None
    """Observation that the policy reads; None if the system failed."""
    seconds: float = 0.0
    """Seconds that the call took, retries included."""
    failure: str = ""
    """Description of a failure of the system; "" if nothing failed."""
    is_bug: bool = False
    """Whether the tool's own code failed, which its author can fix, and not a system that the tool needs."""

    @property
    def is_last(self) -> bool:
        """Whether no further call may begin: the system failed, or the call ends the rollout."""
        return self.observation is None or self.observation.end is not None

    def observed(self) -> Observation:
        """The observation, for callers outside of a rollout.

        Raises:
            ToolFailureError: If a system that the tool needs failed.
            UserCodeError: If the code of the tool failed.
        """
        if self.observation is None:
            raise (UserCodeError if self.is_bug else ToolFailureError)(self.failure)
        return self.observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The tools of one rollout, their shared workspace, and how many calls run at once."""

    tools: dict[str, Tool]
    """{name: tool}"""
    workspace: Workspace = field(default_factory=Workspace)
    max_calls_per_turn: int = 16
    """Most calls of one turn that are run; for each further call the policy reads an error."""
    parallel_calls: bool = False
    """Whether the calls of one turn run at once, but for those whose tools keep them in order."""

    @property
    def schemas(self) -> list[JsonObject]:
        return [tool.schema for tool in self.tools.values()]

    async def run(self, calls: Sequence[ToolCall | Malformed], deadline: float = math.inf) -> list[CallOutcome]:
        """Run the calls of one turn and return their outcomes in order.

        Of calls in order, none begins after a failure of the system, or after one that ends the rollout. No call begins
        after the deadline. So there may be fewer outcomes than calls.

        Args:
            calls: The calls in their order.
            deadline: Time of `time.monotonic` after which no call begins; one that has begun is finished.
        """
        chains: dict[int | None, list[tuple[int, ToolCall | Malformed]]] = {}
        for number, call in enumerate(calls):
            is_in_order = not self.parallel_calls or self._is_in_order(call)
            chains.setdefault(None if is_in_order else number, []).append((number, call))
        found = await asyncio.gather(*(self._one_after_the_other(chain, deadline) for chain in chains.values()))
        outcomes = dict(itertools.chain.from_iterable(found))
        return [outcomes[number] for number in sorted(outcomes)]

    def _is_in_order(self, call: ToolCall | Malformed) -> bool:
        tool = self.tools.get(call.name) if isinstance(call, ToolCall) else None
        return tool is not None and tool.policy.in_order

    async def _one_after_the_other(
        self, calls: Sequence[tuple[int, ToolCall | Malformed]], deadline: float
    ) -> list[tuple[int, CallOutcome]]:
        """(number, outcome) of each call until the system fails, one ends the rollout, or the deadline is over."""
        outcomes: list[tuple[int, CallOutcome]] = []
        for number, call in calls:
            if time.monotonic() > deadline:
                break
            outcome = await self.run_one(call, number)
            outcomes.append((number, outcome))
            if outcome.is_last:
                break
        return outcomes

    async def run_one(self, call: ToolCall | Malformed, number: int) -> CallOutcome:
        """Run the call that is at position `number` of its turn, from 0."""
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
        if problem is not None and problem.is_schema_broken:
            return CallOutcome(call=call, observation=None, failure=f"tool {call.name}: {problem.detail}")
        if problem is not None:
            kind = ErrorKind.MISSING_ARGUMENT if problem.is_missing else ErrorKind.INVALID_ARGUMENT
            return _refused(call, kind, problem.detail)
        return await self._outcome(call, tool)

    async def _outcome(self, call: ToolCall, tool: Tool) -> CallOutcome:
        began = time.monotonic()
        observation, failure, is_bug = None, "", False
        try:
            observation = await _observation(call, tool, self.workspace)
        except ToolError as error:
            observation = Observation(failure_text(str(error)), error.kind)
        except SandboxRequestError as error:  # a program of many megabytes, for example
            observation = Observation(failure_text(str(error)), ErrorKind.REFUSED)
        except (ToolFailureError, SandboxError) as error:
            failure, is_bug = str(error)[:_MAX_DETAIL], isinstance(error, ToolBugError)
        seconds = time.monotonic() - began
        return CallOutcome(call=call, observation=observation, seconds=seconds, failure=failure, is_bug=is_bug)


def _problem(call: ToolCall, tool: Tool) -> ArgumentProblem | None:
    if is_too_deep(call.arguments):
        return ArgumentProblem("the arguments are nested too deeply")
    try:
        encode_json(call.arguments)
    except BadRowError as error:  # NaN, or a lone surrogate
        return ArgumentProblem(str(error))
    return schemas_by_name(encode_json([tool.schema]))[call.name].problem(call.arguments)


def failure_text(reason: str) -> str:
    """Observation after a mistake of the policy, in the same form as the responses of `tool_response.py`.

    A lone surrogate in the reason, which no tokenizer takes, is written as \\uNNNN.
    """
    return f"Tool call failure\nreason: error, {reason}".encode("utf-8", "backslashreplace").decode()


def _refused(call: ToolCall | Malformed, kind: ErrorKind, reason: str) -> CallOutcome:
    return CallOutcome(call=call, observation=Observation(failure_text(reason), kind))


async def _observation(call: ToolCall, tool: Tool, workspace: Workspace) -> Observation:
    """Observation of a call; whatever the tool raises or returns becomes one of the errors below.

    Raises:
        ToolError: If the call cannot be done, through the policy's fault.
        SandboxRequestError: If the call asks the sandbox for something that is not allowed.
        ToolFailureError: If the tool failed in any other way; SandboxError if the sandbox did.
    """
    place = f"tool {call.name}"
    try:
        observation = await _with_retries(call, tool, workspace)
    except (ToolError, SandboxRequestError, ToolFailureError, SandboxError):
        raise
    except (PageError, SnapshotError) as error:  # of what the policy did to a page or a session
        raise ToolError(str(error)) from error
    except (PivotError, OSError) as error:  # a system that the tool needs; a ConfigError is a ValueError, too
        raise ToolFailureError(f"{place} raised {named(error)}") from error
    except ValueError as error:
        raise ToolError(str(error)) from error
    except BaseException as error:  # the tool's own code: verl gathers rollouts, and one would end them all
        if ends_this_task(error):
            raise
        raise ToolBugError(str(code_error(place, error))) from error
    if not isinstance(observation, Observation) or not isinstance(observation.text, str):
        raise ToolBugError(f"{place} returned {observation!r:.100}; return an Observation with a text")
    return replace(observation, text=observation.text.encode("utf-8", "backslashreplace").decode())


async def _with_retries(call: ToolCall, tool: Tool, workspace: Workspace) -> Observation:
    attempts = AsyncRetrying(
        stop=stop_after_attempt(1 + tool.policy.retries),
        wait=wait_random_exponential(multiplier=0.2, max=5.0),
        retry=retry_if_exception(_may_be_retried),
        reraise=True,
    )
    async for attempt in attempts:
        with attempt:
            try:
                async with asyncio.timeout(tool.policy.timeout_seconds):
                    return await tool.call(call.arguments, workspace)
            except TimeoutError as error:
                text = f"tool {call.name} did not answer{_within(tool.policy.timeout_seconds)}"
                if tool.policy.on_timeout is OnTimeout.TELL_POLICY:
                    raise ToolError(text, ErrorKind.TIME_LIMIT) from error
                raise _UnansweredCallError(text) from error
    raise AssertionError("tenacity ends with a result or raises")


def _within(seconds: float | None) -> str:
    return " in time" if seconds is None else f" within {seconds:g} s"


class _UnansweredCallError(ToolFailureError):
    """A tool did not answer in time. Such a call is not retried, since the first attempt may still run."""


def _may_be_retried(error: BaseException) -> bool:
    is_final = isinstance(error, SessionLostError | _UnansweredCallError)
    return isinstance(error, ToolFailureError | SandboxError) and not is_final
