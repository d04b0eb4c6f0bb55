"""The contract of a tool: one call's arguments -> what the policy reads, and whose fault a failure is."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from verl_pivot.errors import ToolFailureError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject, Message, ToolCall, Verdict


class ErrorKind(StrEnum):
    """What the policy did wrong in a call. It is told so, and the trajectory goes on."""

    MALFORMED_CALL = "malformed_call"
    UNKNOWN_TOOL = "unknown_tool"
    MISSING_ARGUMENT = "missing_argument"
    INVALID_ARGUMENT = "invalid_argument"
    TOO_MANY_CALLS = "too_many_calls"
    NO_ACTION = "no_action"
    """Neither a call nor an answer, where the format asks for one of them."""
    REFUSED = "refused"
    """The tool itself says that the call cannot be done."""
    EXECUTION_ERROR = "execution_error"
    """The policy's program failed."""
    TIME_LIMIT = "time_limit"
    """The policy's program would not end."""
    NOT_RECORDED = "not_recorded"
    """Replay has no result for this call."""


class ToolError(ValueError):
    """Raised by a tool for a call that cannot be done as the policy wants it; the text is what the policy reads.

    A ValueError counts as one, too. Any other exception of a tool is a failure of the system: it never becomes a
    reward.
    """

    def __init__(self, text: str, kind: ErrorKind = ErrorKind.REFUSED) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Observation:
    """What one call gave back."""

    text: str
    error: ErrorKind | None = None


class Tool(Protocol):
    """Something that the policy may call; shared by all trajectories, so that state belongs into the workspace."""

    @property
    def schema(self) -> JsonObject:
        """In the OpenAI form, with a JSON schema of the parameters."""
        ...

    @property
    def retries(self) -> int:
        """How often a call that the system failed is made again: 0 where doing it twice could do harm."""
        ...

    @property
    def timeout_seconds(self) -> float:
        """After which the tool counts as hung."""
        ...

    @property
    def tells_timeouts(self) -> bool:
        """Whether the policy is told of that as its own mistake, since its arguments decide how long a call takes."""
        ...

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        """Do one call, whose arguments the schema accepts.

        Raises:
            ToolError: If it cannot be done, through the policy's fault.
            ToolFailureError: If the system failed; so does SandboxError.
        """
        ...


class Environment:
    """The state of one trajectory and the tools that act on it: subclass it, name it in the tools file.

    Example:
        class Counter(Environment):
            def __init__(self, metadata):
                self.count = metadata["start"]

            @property
            def tools(self):
                return [INCREMENT]

            async def call(self, call):
                self.count += 1
                return str(self.count)
    """

    def __init__(self, metadata: JsonObject) -> None:
        """Make the state for a row.

        Args:
            metadata: The row's column of this name, decoded.
        """

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Schemas in the OpenAI form; none where only the outcome counts."""
        return ()

    async def call(self, call: ToolCall) -> str | Observation:
        """Do one call of one of `tools`, whose arguments its schema accepts; never two at once.

        Raises:
            ToolError: If it cannot be done, through the policy's fault.
        """
        raise ToolFailureError(f"environment {type(self).__name__} has tools and no method `call`")

    async def score(self, answer: Message | None) -> Verdict | None:
        """The outcome of the trajectory; None leaves it to the reward manager.

        Args:
            answer: The policy's last message; None where a limit ended the trajectory before it had one.
        """
        return None

    async def close(self) -> None:
        """Let go of what the state holds; called once, however the trajectory ended."""
