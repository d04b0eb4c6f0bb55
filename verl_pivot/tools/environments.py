"""Environment class -> the Tools of one rollout, whose calls run one at a time, and the score of its outcome."""

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy

from verl_pivot.data.json_values import decode_json, encode_json
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import ConfigError, PivotError, ToolFailureError, UserCodeError
from verl_pivot.tools.contract import AchievedTask, CallPolicy, Environment, Observation, Tool, tool_methods
from verl_pivot.tools.functions import observe
from verl_pivot.tools.signatures import ToolSignature, checked_schemas, read_signature
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import Json, JsonObject, Message, ToolCall, Verdict
from verl_pivot.user_code import named, own_code

SCORE_SECONDS = 600
"""Seconds that the method `score` of an environment may take."""
CLOSE_SECONDS = 10
"""Seconds that its method `close` may take."""


class OpenedEnvironment(Protocol):
    """An environment during one rollout: its tools, its beginning, its outcome, and its end."""

    @property
    def tools(self) -> Sequence[Tool]: ...

    async def begin(self) -> str:
        """Begin before the policy reads its prompt, and return the first observation, or "" if there is none.

        Raises:
            ToolFailureError: If the environment cannot begin; the rollout is masked.
        """
        ...

    async def score(self, answer: Message | None) -> Verdict | None:
        """Verdict on the outcome; undecided if a system that the environment needs fails, None if it decides nothing.

        Args:
            answer: The policy's last message; None if a limit ended the rollout before there was one.
        """
        ...

    def progress(self) -> float | None:
        """How close the state is to the desired outcome; None if unknown."""
        ...

    async def close(self) -> None:
        """Release what the environment holds; called once, however the rollout ended, also if `begin` failed.

        Raises:
            ToolFailureError: If that fails.
        """
        ...


class EnvironmentSource(Protocol):
    """An entry `- environment: gymnasium:ID` or the like, which makes an environment of another framework."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Schemas, in OpenAI's form, of the tools that every rollout has."""
        ...

    @property
    def pays_by_turn(self) -> bool:
        """Whether the rewards of calls are paid on their turns."""
        ...

    @property
    def can_branch(self) -> bool:
        """Whether a rollout may open many environments of its row, which the same calls bring to the same state."""
        ...

    def drawn_seed(self, metadata: JsonObject, row: Mapping[str, Any]) -> int | None:
        """Seed that the row's environment draws from the prompt and `extra_info.index`; None if it draws none.

        Args:
            metadata: The row's column `metadata`, decoded.
            row: All columns of the row.
        """
        ...

    def open(self, metadata: JsonObject, row: Mapping[str, Any]) -> OpenedEnvironment:
        """The environment of one rollout, which has not begun.

        Args:
            metadata: The row's column `metadata`, decoded.
            row: All columns of the row.

        Raises:
            DataError: If the environment cannot be made from the row.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentKind:
    """An Environment subclass that a tools file names, with the schemas of its methods."""

    environment: type[Environment]
    signatures: tuple[ToolSignature, ...]
    """Signatures of the methods decorated with `@tool`."""
    policy: CallPolicy

    @classmethod
    def read(cls, environment: object, name: str, policy: CallPolicy) -> "EnvironmentKind":
        """Check a class and read the signatures of its tools.

        Args:
            environment: The object that the tools file names.
            name: Its name in the tools file, for messages.
            policy: Time limit of its calls, unless it has limits of its own.

        Raises:
            ConfigError: If it is not a subclass of Environment, or a method's signature cannot become a schema.
        """
        if not isinstance(environment, type) or not issubclass(environment, Environment):
            raise ConfigError(f"{name} is not a subclass of verl_pivot.tools.contract.Environment")
        owner = f"environment {environment.__name__}"
        signatures = [read_signature(method, owner=owner, is_method=True) for method in tool_methods(environment)]
        seconds = None if environment.has_own_limits else policy.timeout_seconds
        ordered = replace(policy, timeout_seconds=seconds, in_order=True)
        return cls(environment=environment, signatures=tuple(signatures), policy=ordered)

    def open(self, metadata: JsonObject) -> "RunningEnvironment":
        """Make the state of one rollout from the decoded column `metadata` of its row.

        Raises:
            UserCodeError: If the class raises.
        """
        with own_code(f"environment {self.environment.__name__}"):
            environment = self.environment(metadata)
        return RunningEnvironment(environment, self.signatures, self.policy)

    @property
    def can_fork(self) -> bool:
        """Whether the class defines `fork`, which copies its state."""
        return self.environment.fork is not Environment.fork

    @property
    def gives_progress(self) -> bool:
        """Whether the class defines `progress`."""
        return self.environment.progress is not Environment.progress

    @property
    def gives_score(self) -> bool:
        """Whether the class defines `score`."""
        return self.environment.score is not Environment.score


@dataclass(frozen=True, slots=True, kw_only=True)
class _EnvironmentTool:
    """One tool of a running environment."""

    schema: JsonObject
    policy: CallPolicy
    run: Callable[[JsonObject, Workspace], Awaitable[Observation]]

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        return await self.run(arguments, workspace)


class RunningEnvironment:
    """An environment during one rollout: its tools, its outcome, and its end."""

    def __init__(
        self,
        environment: Environment,
        signatures: Sequence[ToolSignature],
        policy: CallPolicy,
        listed: Sequence[JsonObject] | None = None,
    ) -> None:
        """Hold the environment, which is not asked for its tools yet: whoever holds it closes it if that fails.

        Args:
            environment: The environment.
            signatures: Signatures of the methods decorated with `@tool`.
            policy: Time limit and order of its calls.
            listed: Schemas of the tools that it lists, if they are known already.
        """
        self._environment = environment
        self._signatures, self._policy, self._listed = signatures, policy, listed
        self._place = f"environment {type(environment).__name__}"

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        """The methods decorated with `@tool`, then the tools that the environment lists.

        Raises:
            UserCodeError: If its `tools` raises, or lists what is no schema of a tool.
        """
        if self._listed is None:
            with own_code(f"{self._place}.tools"):
                listed = list(self._environment.tools)
            self._listed = checked_schemas(listed, f"{self._place}.tools")
        methods = [
            _EnvironmentTool(schema=each.schema, policy=self._policy, run=partial(self._call_method, each))
            for each in self._signatures
        ]
        others = [
            _EnvironmentTool(schema=schema, policy=self._policy, run=partial(self._call_listed, name_of(schema)))
            for schema in self._listed
        ]
        return (*methods, *others)

    async def begin(self) -> str:
        """No first observation: the row's prompt says what the policy must know."""
        return ""

    async def score(self, answer: Message | None) -> Verdict | None:
        """Verdict on the outcome; undecided if a system that the environment needs fails, None if it decides nothing.

        Raises:
            UserCodeError: If `score` raises, or returns neither a Verdict, nor a number in [0, 1], nor None.
        """
        limit = asyncio.timeout(SCORE_SECONDS)
        with own_code(f"{self._place}.score"):
            try:
                async with limit:
                    coming = self._environment.score(answer)
                    outcome = await coming if inspect.isawaitable(coming) else coming
            except (PivotError, OSError) as error:
                late = f"{self._place}.score did not end within {SCORE_SECONDS} s"
                return Verdict.undecided("environment_failed", late if limit.expired() else named(error))
        return _as_verdict(outcome, f"{self._place}.score")

    def progress(self) -> float | None:
        """How close the state is to the desired outcome; None if unknown.

        Raises:
            UserCodeError: If `progress` raises, or returns neither a finite number nor None.
        """
        with own_code(f"{self._place}.progress"):
            progress = self._environment.progress()
            number = None if progress is None else float(progress)
        if number is not None and not math.isfinite(number):
            raise UserCodeError(f"{self._place}.progress returned {number}; return a finite number or None")
        return number

    def achieved(self) -> tuple[AchievedTask, ...]:
        """Tasks that the state solves.

        Raises:
            UserCodeError: If `achieved` raises, or returns anything but tasks whose metadata JSON can hold.
        """
        with own_code(f"{self._place}.achieved"):
            tasks = tuple(self._environment.achieved())
            for task in tasks:
                encode_json(task.metadata)
        return tasks

    @property
    def can_fork(self) -> bool:
        """Whether the environment defines `fork`, which copies its state."""
        return type(self._environment).fork is not Environment.fork

    def fork(self) -> "RunningEnvironment":
        """A copy with a state of its own.

        Raises:
            UserCodeError: If `fork` raises, or returns anything but an environment of the same class.
        """
        with own_code(f"{self._place}.fork"):
            copy = self._environment.fork()
        if type(copy) is not type(self._environment) or copy is self._environment:
            raise UserCodeError(f"{self._place}.fork returned {copy!r:.80}; return a new environment of the same class")
        return RunningEnvironment(copy, self._signatures, self._policy, self._listed)

    def state(self) -> Json:
        """The state as a JSON value.

        Raises:
            UserCodeError: If `state` raises, or returns what JSON cannot hold.
        """
        with own_code(f"{self._place}.state"):
            return decode_json(encode_json(self._environment.state()))

    async def close(self) -> None:
        """Close the environment.

        Raises:
            ToolFailureError: If a system that the environment needs fails.
            UserCodeError: If its `close` raises anything else, or does not end in time.
        """
        limit = asyncio.timeout(CLOSE_SECONDS)
        with own_code(f"{self._place}.close", passed=(ToolFailureError, UserCodeError)):
            try:
                async with limit:
                    await self._environment.close()
            except (ToolFailureError, UserCodeError):
                raise
            except (PivotError, OSError) as error:
                if limit.expired():
                    raise UserCodeError(f"{self._place}.close did not end within {CLOSE_SECONDS} s") from error
                raise ToolFailureError(f"{self._place}.close raised {named(error)}") from error

    async def _call_method(self, signature: ToolSignature, arguments: JsonObject, workspace: Workspace) -> Observation:
        method = getattr(self._environment, signature.name)
        return await self._observe(signature.name, method, signature.values(arguments, workspace))

    async def _call_listed(self, name: str, arguments: JsonObject, workspace: Workspace) -> Observation:
        call = ToolCall(name=name, arguments=arguments)
        return await self._observe("call", self._environment.call, {"call": call})

    async def _observe(self, name: str, function: Callable[..., Any], values: dict[str, Any]) -> Observation:
        return await observe(function, values, f"{self._place}.{name}")


def _as_verdict(outcome: object, place: str) -> Verdict | None:
    if outcome is None or isinstance(outcome, Verdict):
        return outcome
    if isinstance(outcome, numpy.generic):
        outcome = outcome.item()
    if isinstance(outcome, numbers.Real) and 0.0 <= float(outcome) <= 1.0:
        return Verdict(score=float(outcome), reason="scored")
    raise UserCodeError(
        f"{place} returned {outcome!r:.80}; it returns Verdict.accept(), Verdict.refuse(reason), "
        "Verdict.undecided(reason), a number in [0, 1], or None"
    )
