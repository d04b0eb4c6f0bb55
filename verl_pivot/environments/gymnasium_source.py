"""Entry `- environment: gymnasium:ID` of a tools file -> an environment of Gymnasium for each rollout."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from verl_pivot.data.rollout_records import StopReason
from verl_pivot.environments.own_thread import OwnThread
from verl_pivot.environments.renderer import EnvironmentRenderer, StepResult
from verl_pivot.environments.stepped import (
    RewardRule,
    Step,
    SteppedEnvironment,
    SteppedOptions,
    drawn_seed_of,
    reset_options,
    seed_of,
)
from verl_pivot.errors import ConfigError, PivotError, ToolBugError, ToolFailureError
from verl_pivot.extras import extra
from verl_pivot.tools.contract import ToolError
from verl_pivot.tools.registry import register_framework
from verl_pivot.types import ErrorKind, JsonObject
from verl_pivot.user_code import code_error, named
from verl_pivot.user_modules import load_object

with extra("gymnasium"):
    import gymnasium
    from gymnasium import Env

ResultT = TypeVar("ResultT")


class GymnasiumEntry(SteppedOptions):
    """Entry `- environment: gymnasium:ID`: an environment of Gymnasium; each rollout has its own instance."""

    environment: str
    """ID of the environment, or `package.module:ID`, where importing the module registers it."""
    arguments: Mapping[str, Any] = {}
    """Arguments of `gymnasium.make`; with `render_mode: ansi`, the policy also reads the output of `render`."""
    renderer: str | None = None
    """A subclass of EnvironmentRenderer, as `package.module:Class` or `folder/file.py:Class`; None: the default one."""


@register_framework("gymnasium", options=GymnasiumEntry)
class GymnasiumSource:
    """Makes the environment of each rollout. A first one is made, reset and closed at once, as a test."""

    can_branch = True
    drawn_seed = staticmethod(drawn_seed_of)

    def __init__(self, entry: GymnasiumEntry) -> None:
        """Test the environment and read the schema of the tool.

        Raises:
            ConfigError: If the environment cannot be made or reset, or its actions or observations need a renderer.
        """
        self._entry, self._renderer = entry, _renderer_class(entry.renderer)
        self._label = f"gymnasium:{entry.environment}"
        with ThreadPoolExecutor(1) as thread:  # this thread may already run an event loop
            self._schema = thread.submit(asyncio.run, self._tried()).result()
        self.tools, self.pays_by_turn = (self._schema,), entry.reward is RewardRule.TURNS

    def open(self, metadata: JsonObject, row: Mapping[str, Any]) -> SteppedEnvironment:
        """The environment of one rollout.

        Raises:
            DataError: If `metadata.seed` is no seed, or `metadata.options` no object.
        """
        stepper = self._stepper(seed_of(metadata, row), reset_options(metadata))
        return SteppedEnvironment(stepper, self._entry, self._schema, self._label)

    def _stepper(self, seed: int, options: JsonObject | None) -> "GymnasiumStepper":
        return GymnasiumStepper(self._entry, self._renderer, seed=seed, options=options)

    async def _tried(self) -> JsonObject:
        """Schema of the tool, from an environment that is begun and closed for this purpose."""
        stepper, seconds = self._stepper(seed=0, options=None), self._entry.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                try:
                    await stepper.begin()
                    parameters = await stepper.parameters()
                finally:
                    await stepper.close()
        except ConfigError as error:
            raise ConfigError(f"environment {self._label}: {error}") from error
        except TimeoutError as error:
            raise ConfigError(
                f"environment {self._label} was not ready within timeout_seconds={seconds:g} s"
            ) from error
        except ToolFailureError as error:
            raise ConfigError(str(error)) from error
        return self._entry.schema_of_step(self._label, parameters)


class GymnasiumStepper:
    """An environment of Gymnasium in a thread of its own."""

    def __init__(
        self, entry: GymnasiumEntry, renderer: type[EnvironmentRenderer], *, seed: int, options: JsonObject | None
    ) -> None:
        """Store the arguments; `begin` makes the environment.

        Args:
            entry: The entry of the tools file.
            renderer: Class of the renderer.
            seed: Seed of `reset`.
            options: Options of `reset`.
        """
        self._entry, self._renderer_class = entry, renderer
        self._seed, self._options = seed, options
        self._place = f"environment gymnasium:{entry.environment}"
        self._thread = OwnThread(self._place)
        self._environment: Env[Any, Any] | None = None
        self._renderer: EnvironmentRenderer | None = None

    async def begin(self) -> Step:
        """Make and reset the environment."""
        return await self._run("reset", self._begin)

    async def step(self, arguments: JsonObject) -> Step:
        """Take a step."""
        taken = await self._run("step", partial(self._step, arguments))
        if isinstance(taken, ToolError):
            raise taken
        return taken

    async def parameters(self) -> JsonObject:
        """JSON schema of the arguments of a step, once the environment has begun."""
        return await self._run("renderer", lambda: self._begun.renderer.parameters())

    async def close(self) -> None:
        """Close the environment, after a step that still runs."""
        if not self._thread.has_begun:
            return
        try:
            await self._run("close", self._close)
        finally:
            self._thread.end()

    @property
    def _begun(self) -> "_BegunEnvironment":
        assert self._environment is not None, "an environment begins before its steps"
        assert self._renderer is not None, "an environment begins before its steps"
        return _BegunEnvironment(self._environment, self._renderer)

    def _begin(self) -> Step:
        entry = self._entry
        try:
            self._environment = gymnasium.make(entry.environment, disable_env_checker=True, **entry.arguments)
        except (gymnasium.error.Error, ImportError) as error:  # an unknown ID, or a package is missing
            raise ConfigError(f"cannot be made: {error}") from error
        self._renderer = self._renderer_class(self._environment)
        observation, info = self._environment.reset(seed=self._seed, options=self._options)
        first = StepResult(observation, reward=0.0, terminated=False, truncated=False, info=info)
        return Step(_text(self._renderer, first))

    def _step(self, arguments: JsonObject) -> Step | ToolError:
        """The step, or the error that the policy reads because the arguments are no action."""
        environment, renderer = self._begun
        try:
            action = renderer.action(arguments)
        except ValueError as error:
            return ToolError(str(error), ErrorKind.INVALID_ARGUMENT)
        observation, reward, terminated, truncated, info = environment.step(action)
        result = StepResult(observation, float(reward), bool(terminated), bool(truncated), info)
        return Step(_text(renderer, result), result.reward, _end(result))

    def _close(self) -> None:
        if self._environment is not None:
            self._environment.close()

    async def _run(self, method: str, function: Callable[[], ResultT]) -> ResultT:
        """Result of code of the environment or of its renderer, in the thread.

        Raises:
            ToolFailureError: If a system that the code needs fails; ToolBugError if the code itself fails.
        """
        try:
            return await self._thread.run(function)
        except PivotError:
            raise
        except OSError as error:  # a system that the environment needs has failed
            raise ToolFailureError(f"{self._place}.{method} raised {named(error)}") from error
        except (Exception, SystemExit) as error:  # the environment's own code, which may raise anything
            raise ToolBugError(str(code_error(f"{self._place}.{method}", error))) from error


class _BegunEnvironment(NamedTuple):
    """An environment that has been made, with its renderer."""

    environment: Env[Any, Any]
    renderer: EnvironmentRenderer


def _text(renderer: EnvironmentRenderer, result: StepResult) -> str:
    text: object = renderer.text(result)
    if not isinstance(text, str):
        raise TypeError(f"`text` of {type(renderer).__name__} returned {type(text).__name__}; it must return a text")
    return text


def _end(result: StepResult) -> StopReason | None:
    """Whether the step terminated or truncated the environment; terminated if both, None if neither."""
    if result.terminated:
        return StopReason.ENVIRONMENT_TERMINATED
    return StopReason.ENVIRONMENT_TRUNCATED if result.truncated else None


def _renderer_class(name: str | None) -> type[EnvironmentRenderer]:
    if name is None:
        return EnvironmentRenderer
    loaded = load_object(name, "renderer")
    if not isinstance(loaded, type) or not issubclass(loaded, EnvironmentRenderer):
        raise ConfigError(f"renderer {name} is no subclass of verl_pivot.environments.renderer.EnvironmentRenderer")
    return loaded
