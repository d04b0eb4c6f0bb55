"""Functions of the host: a cell of a session calls them by name, and the caller of the session answers into the cell."""

import keyword
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from verl_pivot.errors import SandboxRequestError
from verl_pivot.types import Json, JsonObject

MAX_CALL_BYTES = 1024**2
"""Most bytes of the arguments of one call as JSON, and of its reply."""
MAX_FUNCTIONS = 64
"""Most functions of one session."""
MAX_FUNCTIONS_BYTES = 256 * 1024
"""Most bytes of the descriptions of a session's functions as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFunction:
    """A function that the cells of a session may call, and that whoever runs the cell answers.

    In the session it is a Python function with this signature and docstring, which takes its arguments by place or by
    name. Required arguments stand before the others; an argument that a call leaves out is not sent.

    Example:
        HostFunction(
            name="search",
            description="Search the documents.",
            parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        )

    Raises:
        SandboxRequestError: If the name is no Python identifier.
    """

    name: str
    description: str = ""
    """Docstring of the function."""
    parameters: JsonObject = field(default_factory=dict)
    """JSON schema of its arguments, as in a tool's schema: names, defaults and order of the signature."""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise SandboxRequestError(f"a function of the host is called {self.name!r}, which is no Python identifier")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReply:
    """What a call of a host's function comes to in the cell.

    Example:
        HostReply(value=["Marie Curie", "Pierre Curie"])
    """

    value: Json = None
    """What the call returns."""
    error: str | None = None
    """Text of the RuntimeError that the call raises instead, for what the policy got wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of the calls of one cell.

    Example:
        CallLimits(max_calls=8, reply_seconds=20.0)

    Raises:
        SandboxRequestError: If a limit is not positive.
    """

    max_calls: int = 100
    """Most calls of one cell; each further one raises a RuntimeError in the cell."""
    reply_seconds: float = 60.0
    """Seconds that a reply may take; none of them counts as time of the cell. Later, the cell ends with a SandboxError."""

    def __post_init__(self) -> None:
        if not (self.max_calls > 0 and 0.0 < self.reply_seconds < float("inf")):
            raise SandboxRequestError(f"limits of calls must be positive numbers, got {self}")


AnswerCall = Callable[[str, JsonObject], Awaitable[HostReply]]
"""(name of the function, {name of the argument: value}) -> reply. Any exception is the system's failure: it ends the
cell, and `Session.run` raises it."""
