"""Verifier `state`: an action is right if it leaves an environment in the state that the expert's action leads to."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

from verl_pivot.data.answered_calls import answered_calls
from verl_pivot.data.json_values import BadRowError, decode_json, encode_json, equal
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import UserCodeError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.contract import CallPolicy, Observation
from verl_pivot.tools.environments import EnvironmentKind, RunningEnvironment
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import Json, Message, ToolCall, Turn, Verdict
from verl_pivot.user_modules import load_object
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse, undecided

_MAX_KEPT = 256
"""Environments that are kept, each as it is before one turn, to make copies of it."""


class StateOptions(Options):
    """Options of the verifier `state`."""

    environment: str
    """Environment class, as "package.module:Class" or "folder/file.py:Class"."""
    compare_results: bool = True
    """Whether the results of the calls must be the expert's, too."""
    check_replay: bool = True
    """Whether the calls before the turn must give their recorded results; a row where they do not is undecided."""


class ActionEffect(NamedTuple):
    """What the calls of one action do."""

    observations: tuple[Observation, ...]
    """[num_calls]"""
    state: Json


_Before: TypeAlias = "RunningEnvironment | Verdict"
"""An environment as it is before a turn, or the verdict that it cannot be made."""


@register("state", options=StateOptions)
class StateVerifier:
    """Runs the action's calls and the expert's on copies of the environment, and compares results and states.

    The environment is made from the row's metadata and taken to the turn by the recorded calls. Where the expert writes
    a message, the environment's `score` decides on it, and if it decides nothing, any message is right.
    """

    def __init__(self, options: StateOptions) -> None:
        self._options = options
        loaded = load_object(options.environment, "environment")
        self._kind = EnvironmentKind.read(loaded, options.environment, CallPolicy())

    def __reduce__(self) -> tuple[type["StateVerifier"], tuple[StateOptions]]:
        """Pickle the options alone: the types that are made for the parameters of tools cannot be pickled."""
        return StateVerifier, (self._options,)

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        if not turn.expert.tool_calls:
            return await self._compare_messages(action, turn)
        if not action.tool_calls:
            return refuse(Reason.MESSAGE_INSTEAD_OF_CALL, action.content[:200])
        if len(action.tool_calls) != len(turn.expert.tool_calls):
            return refuse(Reason.WRONG_NUMBER_OF_CALLS, f"{len(action.tool_calls)} for {len(turn.expert.tool_calls)}")
        expert = await self._outcome(turn.expert.tool_calls, turn)
        if isinstance(expert, Verdict):
            return expert
        if (failed := _first_error(expert)) is not None:
            return broken_expert(f"the expert's call fails: {failed}")
        outcome = await self._outcome(action.tool_calls, turn)
        return outcome if isinstance(outcome, Verdict) else self._compare(outcome, expert)

    def _compare(self, outcome: ActionEffect, expert: ActionEffect) -> Verdict:
        if (failed := _first_error(outcome)) is not None:
            return refuse(Reason.RUNTIME_ERROR, failed)
        if self._options.compare_results:
            for given, wanted in zip(outcome.observations, expert.observations, strict=True):
                if not _same_text(given.text, wanted.text):
                    return refuse(Reason.WRONG_OUTPUT, f"{given.text[:200]} is not {wanted.text[:200]}")
        if not equal(outcome.state, expert.state):
            return refuse(Reason.WRONG_STATE, encode_json(outcome.state))
        return Verdict.accept()

    async def _compare_messages(self, action: Message, turn: Turn) -> Verdict:
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE, action.tool_calls[0].name)
        if not action.content.strip():
            return refuse(Reason.EMPTY_MESSAGE)
        expert = await self._score(turn.expert, turn)
        if expert is None or expert.reason == Reason.BROKEN_EXPERT:
            return expert or Verdict.accept()
        if expert.score != 1.0:
            return broken_expert(f"the environment does not take the expert's message: {expert.reason} {expert.detail}")
        verdict = await self._score(action, turn)
        return verdict or undecided(Reason.NOBODY_DECIDED, "the environment decides on the expert's message alone")

    async def _score(self, message: Message, turn: Turn) -> Verdict | None:
        async with self._copy(turn) as environment:
            return environment if isinstance(environment, Verdict) else await environment.score(message)

    async def _outcome(self, calls: Sequence[ToolCall], turn: Turn) -> ActionEffect | Verdict:
        async with self._copy(turn) as environment:
            if isinstance(environment, Verdict):
                return environment
            observations = await _run(calls, environment)
            return (
                observations if isinstance(observations, Verdict) else ActionEffect(observations, environment.state())
            )

    @asynccontextmanager
    async def _copy(self, turn: Turn) -> AsyncIterator[_Before]:
        """The environment before a turn, for one use."""
        if self._kind.can_fork:
            before = await (await _kept.get()).get(self._key(turn), self, turn)
            environment = before if isinstance(before, Verdict) else before.fork()
        else:
            environment = await self.replay(turn)
        try:
            yield environment
        finally:
            if isinstance(environment, RunningEnvironment):
                await environment.close()

    def _key(self, turn: Turn) -> str:
        return encode_json([self._options.model_dump(), turn.metadata, [each.as_dict() for each in turn.state]])

    async def replay(self, turn: Turn) -> _Before:
        """The environment before a turn, made anew by the recorded calls."""
        environment = self._kind.open(turn.metadata)
        problem = await self._replay_into(environment, turn)
        if problem is None:
            return environment
        await environment.close()
        return problem

    async def _replay_into(self, environment: RunningEnvironment, turn: Turn) -> Verdict | None:
        for answered in answered_calls(turn.state):
            observations = await _run([answered.call], environment)
            if isinstance(observations, Verdict):
                return observations
            recorded = None if answered.result is None else answered.result.content
            if self._options.check_replay and (recorded is None or not _same_text(observations[0].text, recorded)):
                shown = f"{answered.call.name} gives {observations[0].text[:150]!r}, and {(recorded or '')[:150]!r}"
                return broken_expert(f"the recorded calls cannot be run again: {shown} is recorded")
        return None


class _Kept:
    """Environments as they are before their turns; callers of one key share one replay."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, asyncio.Task[_Before]] = OrderedDict()

    async def __aenter__(self) -> "_Kept":
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._tasks:
            await self._drop_oldest()

    async def get(self, key: str, verifier: StateVerifier, turn: Turn) -> _Before:
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(verifier.replay(turn))
        self._tasks.move_to_end(key)
        while len(self._tasks) > _MAX_KEPT:
            await self._drop_oldest()
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and (task.cancelled() or task.exception() is not None):
                self._tasks.pop(key, None)

    async def _drop_oldest(self) -> None:
        _, task = self._tasks.popitem(last=False)
        (before,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(before, RunningEnvironment):
            await before.close()


_kept = LoopLocal(_Kept)


async def _run(calls: Sequence[ToolCall], environment: RunningEnvironment) -> tuple[Observation, ...] | Verdict:
    """Observations of calls, run one after the other; undecided if a system that the environment needs fails.

    Raises:
        UserCodeError: If the environment's own code fails.
    """
    tools = {name_of(tool.schema): tool for tool in environment.tools}
    toolbox = Toolbox(tools=tools, workspace=Workspace(), max_calls_per_turn=len(calls))
    try:
        outcomes = await toolbox.run(calls)
    finally:
        await toolbox.workspace.close()
    if any(outcome.is_bug for outcome in outcomes):
        raise UserCodeError(outcomes[-1].failure)
    if outcomes and outcomes[-1].failure:
        return undecided(Reason.ENVIRONMENT_FAILED, outcomes[-1].failure)
    return tuple(outcome.observation for outcome in outcomes if outcome.observation is not None)


def _first_error(outcome: ActionEffect) -> str | None:
    return next((each.text for each in outcome.observations if each.error is not None), None)


def _same_text(first: str, second: str) -> bool:
    """Whether two results are equal, as texts or as JSON values."""
    if first == second:
        return True
    try:
        return equal(decode_json(first), decode_json(second))
    except BadRowError:
        return False
