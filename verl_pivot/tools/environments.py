"""Environment class -> the Tools of one rollout, whose calls run one at a time, and the score of its outcome."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import ConfigError
from verl_pivot.tools.contract import CallPolicy, Environment, Observation, Tool, tool_methods
from verl_pivot.tools.functions import MAX_DETAIL, observe
from verl_pivot.tools.signatures import ToolSignature, read_signature
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject, Message, ToolCall, Verdict


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
            policy: Time limit of its calls.

        Raises:
            ConfigError: If it is no subclass of Environment, or a method's signature cannot become a schema.
        """
        if not isinstance(environment, type) or not issubclass(environment, Environment):
            raise ConfigError(f"{name} is no subclass of verl_pivot.tools.contract.Environment")
        owner = f"environment {environment.__name__}"
        signatures = [read_signature(method, owner=owner, is_method=True) for method in tool_methods(environment)]
        return cls(environment=environment, signatures=tuple(signatures), policy=policy)

    def open(self, metadata: JsonObject) -> "RunningEnvironment":
        """Make the state of one rollout from the decoded column `metadata` of its row."""
        return RunningEnvironment(self.environment(metadata), self.signatures, self.policy)


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

    def __init__(self, environment: Environment, signatures: tuple[ToolSignature, ...], policy: CallPolicy) -> None:
        self._environment = environment
        self._place = f"environment {type(environment).__name__}"
        self._lock = asyncio.Lock()
        methods = [
            _EnvironmentTool(schema=each.schema, policy=policy, run=partial(self._call_method, each))
            for each in signatures
        ]
        listed = [
            _EnvironmentTool(schema=schema, policy=policy, run=partial(self._call_listed, name_of(schema)))
            for schema in environment.tools
        ]
        self.tools: tuple[Tool, ...] = (*methods, *listed)

    async def score(self, answer: Message | None) -> Verdict | None:
        """Verdict on the outcome; undecided if the environment's own code fails, None if it decides nothing."""
        try:
            return await self._environment.score(answer)
        except Exception as error:  # noqa: BLE001  the user's own code: whatever it raises never becomes a reward
            return Verdict.undecided("environment_failed", f"{type(error).__name__}: {error}"[:MAX_DETAIL])

    async def close(self) -> None:
        await self._environment.close()

    async def _call_method(self, signature: ToolSignature, arguments: JsonObject, workspace: Workspace) -> Observation:
        method = getattr(self._environment, signature.name)
        return await self._observe(method, signature.values(arguments, workspace))

    async def _call_listed(self, name: str, arguments: JsonObject, workspace: Workspace) -> Observation:
        return await self._observe(self._environment.call, {"call": ToolCall(name=name, arguments=arguments)})

    async def _observe(self, function: Callable[..., Any], values: dict[str, Any]) -> Observation:
        async with self._lock:
            return await observe(function, values, self._place)
