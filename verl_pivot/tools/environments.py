"""An Environment of one trajectory -> Tools, never two of its calls at once."""

import asyncio

from verl_pivot.errors import ToolFailureError
from verl_pivot.tools.contract import Environment, Observation, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject, Message, ToolCall, Verdict

_MAX_DETAIL = 500


class HeldEnvironment:
    """The user's environment, and what keeps its faults apart from the policy's."""

    def __init__(self, environment: Environment, timeout_seconds: float) -> None:
        self._environment = environment
        self._lock = asyncio.Lock()
        self.timeout_seconds = timeout_seconds

    @property
    def schemas(self) -> list[JsonObject]:
        return list(self._environment.tools)

    async def call(self, call: ToolCall) -> Observation:
        """One call.

        Raises:
            ToolError: If the environment raises it or a ValueError.
            ToolFailureError: If it raises anything else, or returns neither text nor an Observation.
        """
        async with self._lock:
            try:
                result = await self._environment.call(call)
            except ValueError as error:
                raise error if isinstance(error, ToolError) else ToolError(str(error)) from error
            except Exception as error:  # the user's own code: whatever it is, it is no reward
                raise self._broke(f"raised {type(error).__name__}: {error}") from error
        if isinstance(result, str):
            return Observation(result)
        if not isinstance(result, Observation):
            raise self._broke(f"returned {type(result).__name__}, not text or an Observation")
        return result

    async def score(self, answer: Message | None) -> Verdict | None:
        """The outcome; an environment that breaks here decides nothing."""
        try:
            return await self._environment.score(answer)
        except Exception as error:  # noqa: BLE001  as above
            detail = f"{type(error).__name__}: {error}"[:_MAX_DETAIL]
            return Verdict(score=None, reason="environment_failed", detail=detail)

    async def close(self) -> None:
        await self._environment.close()

    def _broke(self, what: str) -> ToolFailureError:
        return ToolFailureError(f"environment {type(self._environment).__name__} {what}"[:_MAX_DETAIL])


class EnvironmentTool:
    """One tool of an environment. Not made again after a failure: the state may have changed."""

    retries = 0
    tells_timeouts = False

    def __init__(self, schema: JsonObject, environment: HeldEnvironment) -> None:
        self.schema = schema
        self._environment = environment
        function = schema["function"]
        assert isinstance(function, dict), schema
        self._name = str(function["name"])

    @property
    def timeout_seconds(self) -> float:
        return self._environment.timeout_seconds

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        return await self._environment.call(ToolCall(name=self._name, arguments=arguments))
