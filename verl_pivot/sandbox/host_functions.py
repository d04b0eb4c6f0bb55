"""Functions of the host: the cells of a session call them, and the caller of `Session.run` answers."""

import json
import keyword
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from verl_pivot.errors import SandboxRequestError
from verl_pivot.types import Json, JsonObject

MAX_FUNCTIONS = 64
"""Most functions of one session."""
MAX_FUNCTIONS_BYTES = 256 * 1024
"""Most bytes of the descriptions of a session's functions as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFunction:
    """A function that the cells of a session may call; the caller of `Session.run` answers the calls.

    In the session it is a Python function with this signature and docstring, which takes its arguments by position or
    by name. Required arguments come first; an argument that a call leaves out is not sent.

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
    """JSON schema of the arguments, as for a tool; it gives the names, defaults and order in the signature."""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise SandboxRequestError(f"the name {self.name!r} of a host function is not a valid Python identifier")
        properties, required = self.parameters.get("properties", {}), self.parameters.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            raise SandboxRequestError(f"the parameters of function {self.name} must be a JSON schema of an object")


def check_functions(functions: Sequence[HostFunction]) -> None:
    """Check the functions of one session together.

    Raises:
        SandboxRequestError: If they are too many or too long, or two have the same name.
    """
    names = [function.name for function in functions]
    if len(names) > MAX_FUNCTIONS:
        raise SandboxRequestError(f"a session can have at most {MAX_FUNCTIONS} host functions, got {len(names)}")
    if repeated := {name for name in names if names.count(name) > 1}:
        raise SandboxRequestError(f"two host functions have the name {min(repeated)}: give each its own name")
    num_bytes = sum(len(json.dumps((each.description, each.parameters))) for each in functions)
    if num_bytes > MAX_FUNCTIONS_BYTES:
        raise SandboxRequestError(
            f"the descriptions of the host functions have {num_bytes} bytes; at most {MAX_FUNCTIONS_BYTES} are allowed"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReply:
    """Reply to a call of a function of the host: what the call returns or raises in the cell.

    Example:
        HostReply(value=["Marie Curie", "Pierre Curie"])
    """

    value: Json = None
    """Value that the call returns."""
    error: str | None = None
    """Message of the RuntimeError that the call raises instead, for a mistake of the policy."""


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
    """Seconds that a reply may take; the cell's clock is paused meanwhile. Without a reply in time, the cell ends with
    a SandboxError."""

    def __post_init__(self) -> None:
        if not (self.max_calls > 0 and 0.0 < self.reply_seconds < float("inf")):
            raise SandboxRequestError(f"the limits of calls must be positive numbers, got {self}")


class HostCall(NamedTuple):
    """A call as it comes from the sandbox, where the code of a cell may have forged it."""

    number: int
    name: str
    """Name of one of the session's functions."""
    arguments: str
    """JSON of the arguments, or any other text."""


class ReplyText(NamedTuple):
    """A reply on its way to the cell; either `value` or `error` is None."""

    value: str | None
    """JSON of the value that the call returns."""
    error: str | None


OnCall = Callable[[HostCall], Awaitable[ReplyText]]
"""Function that gets the calls of a cell, one at a time, and returns the reply to each."""


class PassedCalls(NamedTuple):
    """Limits of the calls of one cell, and the function that passes them to the client."""

    limits: CallLimits
    on_call: OnCall


AnswerCall = Callable[[str, JsonObject], Awaitable[HostReply]]
"""(name of the function, {name of the argument: value}) -> reply. Any exception is the system's failure: it ends the
cell, and `Session.run` raises it."""
