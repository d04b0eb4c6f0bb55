"""What schedules rollouts over engines: requests in, placements out. Pure and deterministic, without a clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One turn that wants an engine, as a router sees it: nothing of what it will generate.

    Example:
        Request(conversation="c7", group="p2", prompt_tokens=1024, context_tokens=0, now=0.0)
    """

    conversation: str
    group: str
    """Its prompt, which the rollouts of a group share."""
    prompt_tokens: int
    context_tokens: int
    """Of the conversation after its prompt; more than none if it has begun."""
    now: float
    """Seconds, as in all that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A turn that ended. How many tokens it has is known when the conversation returns, or ends."""

    conversation: str
    server: str
    now: float
    may_be_last: bool = False
    """Whether nobody will say so if the conversation ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A conversation that is over."""

    conversation: str
    response_tokens: int | None
    """None: nobody said."""
    now: float


class Placement(NamedTuple):
    """A waiting request may go to a server."""

    conversation: str
    server: str


class Policy(Protocol):
    """Every call answers with the requests that may go now: the one asked for, others that waited, or none.

    A conversation has one request at a time. Servers come and go by their names, and nothing is asked for while there
    is none.
    """

    def acquire(self, request: Request) -> Sequence[Placement]: ...

    def release(self, release: Release) -> Sequence[Placement]: ...

    def end(self, end: End) -> Sequence[Placement]: ...

    def add_server(self, name: str, capacity: int, now: float) -> Sequence[Placement]:
        """A server with so many tokens of KV cache; of one that is known, the capacity has changed."""
        ...

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        """A server is gone, and with it every prefix there. What ran there is not released any more."""
        ...

    def forget_prefixes(self) -> None:
        """The engines' caches are empty now: new weights."""
        ...
