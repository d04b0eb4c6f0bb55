"""Interfaces of tools and environments: a call's arguments -> an Observation, or an error that says who is at fault."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar

from verl_pivot.data.rollout_records import StopReason
from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, Json, JsonObject, Message, ToolCall, Verdict

MethodT = TypeVar("MethodT", bound=Callable[..., Any])
_TOOL_MARK = "verl_pivot_tool"


class ToolError(ValueError):
    """Raised by a tool for a call that is the policy's mistake; the policy reads the text and goes on.

    A ValueError has the same effect. Any other exception of a tool is a failure of the system and never becomes a
    reward.
    """

    def __init__(self, text: str, kind: ErrorKind = ErrorKind.REFUSED) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Observation:
    """Result of one call, as the policy reads it."""

    text: str
    """Text that the policy reads."""
    error: ErrorKind | None = None
    """Kind of the policy's mistake; None if the call succeeded."""
    reward: float | None = None
    """Reward of an environment for the call. It is recorded, and is paid only if the verdict of `score` says so."""
    end: StopReason | None = None
    """ENDED_BY_TOOL, or the end of an environment, if the rollout ends with this call; None if it goes on.
    In a notebook only a submitted answer ends it."""


class OnTimeout(StrEnum):
    """Rule for calls that exceed their time limit."""

    MASK = "mask"
    """The system failed: the rollout ends and is masked."""
    TELL_POLICY = "tell_policy"
    """The policy made a mistake: it reads an error and goes on. For tools whose arguments decide the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """Time limit, retries and order of the calls of one tool.

    Example:
        CallPolicy(timeout_seconds=20.0, retries=2)
    """

    timeout_seconds: float | None = 60.0
    """Seconds after which a call times out; None: no limit, because the tool has its own."""
    retries: int = 0
    """Further attempts after a failure of the system; 0 if running a call twice could do harm."""
    on_timeout: OnTimeout = OnTimeout.MASK
    in_order: bool = False
    """Whether calls of one rollout never run at once with other such calls, since they change a state that they share.
    The time limit of a call begins with the call, not with its wait."""


class Tool(Protocol):
    """A tool that the policy may call. All rollouts share it, so its state belongs in the workspace."""

    @property
    def schema(self) -> JsonObject:
        """Name, description and JSON schema of the parameters, in the OpenAI form."""
        ...

    @property
    def policy(self) -> CallPolicy:
        """Time limit, retries, what follows a timeout, and order."""
        ...

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        """Run one call.

        Args:
            arguments: Arguments that the schema accepts.
            workspace: State that the calls of one rollout share.

        Raises:
            ToolError: If the call cannot be done, through the policy's fault.
            ToolFailureError: If the system failed; SandboxError has the same effect.
        """
        ...


def tool(method: MethodT) -> MethodT:
    """Decorator for methods of an Environment: the policy may call the method under its name.

    The schema comes from the type hints, its descriptions from the first paragraph of the docstring and from
    `Annotated[int, pydantic.Field(description=...)]`. The method returns text, a JSON value or an Observation. An
    `async` method runs in the event loop, any other in a thread of its own; two calls of one rollout never run at once.

    Raises:
        ConfigError: If it decorates anything but a method.
    """
    if not inspect.isfunction(method):
        raise ConfigError(f"@tool must stand directly above a method, got a {type(method).__name__}")
    setattr(method, _TOOL_MARK, True)
    return method


def tool_methods(environment: type["Environment"]) -> list[Callable[..., Any]]:
    """Methods decorated with `@tool` in a class and its bases, bases first, in the order of their definition."""
    names = dict.fromkeys(name for base in reversed(environment.__mro__) for name in vars(base))
    found = (inspect.getattr_static(environment, name) for name in names)
    return [function for function in found if inspect.isfunction(function) and hasattr(function, _TOOL_MARK)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AchievedTask:
    """A task that a state solves, whatever task the policy was given.

    Example:
        AchievedTask(metadata={"stock": {"tea": 3}, "wanted": {"tea": 1}}, request="Order a pack of tea.")
    """

    metadata: JsonObject
    """Column `metadata` of a row with the task: in an environment made from it, the same calls score 1."""
    request: str | None = None
    """Words in which a user asks for the task; None: the caller finds the words."""


class Environment:
    """State of one rollout, with the tools that act on it. Subclass it and name the class in a tools file.

    Example:
        class Counter(Environment):
            def __init__(self, metadata):
                self.count = metadata["start"]

            @tool
            def increment(self, by: int = 1) -> str:
                '''Count up; the new count comes back.'''
                self.count += by
                return str(self.count)

            async def score(self, answer):
                return Verdict.accept() if self.count == 3 else Verdict.refuse("wrong_count")
    """

    has_own_limits: ClassVar[bool] = False
    """Whether calls limit their own time. If so, a tools file must not give `timeout_seconds`, and none applies."""

    def __init__(self, metadata: JsonObject) -> None:
        """Make the state for a row.

        Args:
            metadata: The row's column `metadata`, decoded.
        """

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Schemas, in the OpenAI form, of tools that depend on the row; their calls go to `call`."""
        return ()

    async def call(self, call: ToolCall) -> object:
        """Run one call of one of `tools`; may return and raise the same as a method decorated with `@tool`.

        Args:
            call: A call whose arguments the schema accepts.

        Raises:
            ToolError: If the call cannot be done, through the policy's fault.
        """
        raise ToolFailureError(f"environment {type(self).__name__} lists `tools` but has no method `call` to run them")

    async def score(self, answer: Message | None) -> Verdict | float | None:
        """The outcome of the rollout, or a number in [0, 1] as its score; None leaves it to the reward manager.

        Args:
            answer: The policy's last message; None if a limit or a tool ended the rollout before there was one.
        """
        return None

    def progress(self) -> float | None:
        """How close the state is to the desired outcome, as a number; larger is closer, and None means unknown.

        Only states of the same row are compared by it. The method must not change the state.
        """
        return None

    def achieved(self) -> Sequence[AchievedTask]:
        """Tasks that this state solves, to make new tasks from failed rollouts; it must not change the state."""
        return ()

    def fork(self) -> "Environment | None":
        """A copy with a state of its own, for the verifier `state` and for searches.

        Without this method, the calls so far are run again in a new environment of the row.
        """
        return None

    def state(self) -> Json:
        """The state as a JSON value, which the verifier `state` compares; None: it compares results of calls alone."""
        return None

    async def close(self) -> None:
        """Release the resources of the state; called once, however the rollout ended."""
