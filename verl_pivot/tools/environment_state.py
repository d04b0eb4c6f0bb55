"""Verifier `state`: an action is right if it leaves an environment in the state that the expert's action leads to."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

from verl_pivot.data.answered_calls import answered_calls
from verl_pivot.data.json_values import encode_json, equal, equal_texts
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import ToolFailureError, UserCodeError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.tools.calls import Toolbox
from verl_pivot.tools.contract import CallPolicy, Observation
from verl_pivot.tools.environments import EnvironmentKind, RunningEnvironment
from verl_pivot.tools.tool_response import is_same_result
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import Json, Message, ToolCall, Turn, Verdict
from verl_pivot.user_modules import load_object
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse, undecided

_MAX_KEPT = 256
"""Most environments in the cache, each in its state before one turn, from which copies are made."""
_MAX_ATTEMPTS = 2
"""Failed runs of an action, after which the expert's action is run to see whether the environment fails there, too."""


class StateOptions(Options):
    """Options of the verifier `state`."""

    environment: str
    """Environment class, as "package.module:Class" or "folder/file.py:Class"."""
    compare_results: bool = True
    """Whether the results of the calls must be the expert's, too."""
    check_replay: bool = True
    """Whether the calls before the turn must give their recorded results; a row where they do not is undecided."""


class ActionEffect(NamedTuple):
    """Observations of the calls of one action, and the state after them."""

    observations: tuple[Observation, ...]
    """[num_calls]"""
    state: Json


_Before: TypeAlias = "RunningEnvironment | Verdict"
"""An environment as it is before a turn, or the verdict that it cannot be made."""


class _ForkedEnvironment(NamedTuple):
    """An environment that copies are made of."""

    environment: RunningEnvironment
    state: Json
    """State before the first copy, which no copy may change."""


@register("state", options=StateOptions)
class StateVerifier:
    """Runs the action's calls and the expert's on copies of the environment, and compares results and states.

    The environment is made from the row's metadata, and the recorded calls bring it into the state before the turn. If
    the expert writes a message, the environment's `score` judges the message; if `score` gives None, any message is
    right.
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
        try:
            expert = await self._expert_effect(turn)
            if isinstance(expert, Verdict):
                return expert
            effect = await self._action_effect(action, turn)
            if self._kind.can_fork:
                await self._check_original(turn)
        except ToolFailureError as error:
            return undecided(Reason.ENVIRONMENT_FAILED, str(error))
        return effect if isinstance(effect, Verdict) else self._compare(effect, expert)

    async def _expert_effect(self, turn: Turn) -> ActionEffect | Verdict:
        async with self._copy(turn) as environment:
            if isinstance(environment, Verdict):
                return environment
            before = None if self._options.compare_results else environment.state()
            effect = ActionEffect(await _run(turn.expert.tool_calls, environment), environment.state())
        if (failed := _first_error(effect)) is not None:
            return broken_expert(f"the expert's call fails: {failed}")
        if not self._options.compare_results and equal(before, effect.state):
            return broken_expert("the expert's calls change nothing, and results are not compared")
        return effect

    async def _check_original(self, turn: Turn) -> None:
        """Raises UserCodeError if a copy has changed the environment that it was made of."""
        original = await (await _originals.get()).get(self._key(turn), self, turn)
        if isinstance(original, _ForkedEnvironment) and not equal(original.environment.state(), original.state):
            raise UserCodeError(
                f"{self._options.environment}: the state of an environment changed after copies were made of it. Its "
                "fork must copy lists and dicts within each other too, as copy.deepcopy does, and its state must not "
                "change by itself, as a clock does"
            )

    async def _action_effect(self, action: Message, turn: Turn) -> ActionEffect | Verdict:
        """Effect of the action, which is refused if the environment fails at it every time, and not at the expert's.

        Raises:
            ToolFailureError: If the environment fails at the expert's action, too.
            UserCodeError: If the environment's own code fails.
        """
        failed = ""
        for _ in range(_MAX_ATTEMPTS):
            async with self._copy(turn) as environment:
                if isinstance(environment, Verdict):
                    return environment
                try:
                    observations = await _run(action.tool_calls, environment)
                except ToolFailureError as error:
                    failed = str(error)
                else:
                    return ActionEffect(observations, environment.state())
        await self._expert_effect(turn)
        return refuse(Reason.RUNTIME_ERROR, f"the environment fails at this action but not at the expert's: {failed}")

    def _compare(self, effect: ActionEffect, expert: ActionEffect) -> Verdict:
        if (failed := _first_error(effect)) is not None:
            return refuse(Reason.RUNTIME_ERROR, failed)
        if self._options.compare_results and (wrong := _first_other(effect, expert)) is not None:
            return refuse(Reason.WRONG_OUTPUT, f"{wrong[:200]} is not a result of the expert's calls")
        if not equal(effect.state, expert.state):
            return refuse(Reason.WRONG_STATE, encode_json(effect.state))
        return Verdict.accept()

    async def _compare_messages(self, action: Message, turn: Turn) -> Verdict:
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE, action.tool_calls[0].name)
        if not action.content.strip():
            return refuse(Reason.EMPTY_MESSAGE)
        try:
            return await self._verdict_on_message(action, turn)
        except ToolFailureError as error:
            return undecided(Reason.ENVIRONMENT_FAILED, str(error))

    async def _verdict_on_message(self, action: Message, turn: Turn) -> Verdict:
        expert = await self._score(turn.expert, turn)
        if expert is None:
            return Verdict.accept()
        if expert.score is None:
            return expert
        if expert.score != 1.0:
            shown = f"{expert.reason} {expert.detail}"
            return broken_expert(f"the environment does not accept the expert's message: {shown}")
        verdict = await self._score(action, turn)
        detail = "the environment decides on the expert's message, but not on this one"
        return verdict or undecided(Reason.NOBODY_DECIDED, detail)

    async def _score(self, message: Message, turn: Turn) -> Verdict | None:
        async with self._copy(turn) as environment:
            return environment if isinstance(environment, Verdict) else await environment.score(message)

    @asynccontextmanager
    async def _copy(self, turn: Turn) -> AsyncIterator[_Before]:
        """The environment before a turn, for one use."""
        if self._kind.can_fork:
            original = await (await _originals.get()).get(self._key(turn), self, turn)
            environment = original if isinstance(original, Verdict) else original.environment.fork()
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
        try:
            problem = await self._replay_into(environment, turn)
        except (ToolFailureError, UserCodeError):
            await environment.close()
            raise
        if problem is None:
            return environment
        await environment.close()
        return problem

    async def original(self, turn: Turn) -> _ForkedEnvironment | Verdict:
        """The environment before a turn, to make copies of."""
        environment = await self.replay(turn)
        return environment if isinstance(environment, Verdict) else _ForkedEnvironment(environment, environment.state())

    async def _replay_into(self, environment: RunningEnvironment, turn: Turn) -> Verdict | None:
        for answered in answered_calls(turn.state):
            observations = await _run([answered.call], environment)
            recorded = None if answered.result is None else answered.result.content
            if self._options.check_replay and (recorded is None or not is_same_result(observations[0].text, recorded)):
                shown = f"{answered.call.name} gives {observations[0].text[:150]!r}, but {(recorded or '')[:150]!r}"
                return broken_expert(f"the recorded calls cannot be run again: {shown} is recorded")
        return None


class _Originals:
    """Cache of environments to copy, each in its state before a turn; callers with equal keys share one replay."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, asyncio.Task[_ForkedEnvironment | Verdict]] = OrderedDict()

    async def __aenter__(self) -> "_Originals":
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._tasks:
            await self._drop_oldest()

    async def get(self, key: str, verifier: StateVerifier, turn: Turn) -> _ForkedEnvironment | Verdict:
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(verifier.original(turn))
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
        (original,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(original, _ForkedEnvironment):
            await original.environment.close()


_originals = LoopLocal(_Originals)


async def _run(calls: Sequence[ToolCall], environment: RunningEnvironment) -> tuple[Observation, ...]:
    """Observations of calls, run one after the other.

    Raises:
        ToolFailureError: If a system that the environment needs fails.
        UserCodeError: If the environment's own code fails.
    """
    tools = {name_of(tool.schema): tool for tool in environment.tools}
    toolbox = Toolbox(tools=tools, workspace=Workspace(), max_calls_per_turn=len(calls))
    try:
        outcomes = await toolbox.run(calls)
    finally:
        await toolbox.workspace.close()
    return tuple(outcome.observed() for outcome in outcomes)


def _first_error(effect: ActionEffect) -> str | None:
    return next((each.text for each in effect.observations if each.error is not None), None)


def _first_other(effect: ActionEffect, expert: ActionEffect) -> str | None:
    """The first result that the expert's lack. Each of these is matched once; independent calls have no order."""
    wanted = [each.text for each in expert.observations]
    for given in effect.observations:
        found = next((text for text in wanted if equal_texts(given.text, text)), None)
        if found is None:
            return given.text
        wanted.remove(found)
    return None
