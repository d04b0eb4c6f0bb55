"""RoutingPolicy, the interface of policies that decide which engine serves a turn: TurnRequest -> Placements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """One turn of a conversation that needs a server. How many tokens it will generate is not known.

    Example:
        TurnRequest(conversation="c7", group="p2", prompt_tokens=1024, context_tokens=0, now=0.0)
    """

    conversation: str
    """Id of the conversation, the same for all of its turns."""
    group: str
    """Id of the prompt, the same for all rollouts of a group."""
    prompt_tokens: int
    context_tokens: int
    """Tokens of the conversation after its prompt; 0 in its first turn."""
    is_only_turn: bool = False
    """Whether the agent loop has said that the conversation has no other turn."""
    now: float
    """Time in seconds, from the same clock for everything that a routing policy is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRelease:
    """The end of a turn on a server. The turn's tokens become known with the conversation's next request or end."""

    conversation: str
    server: str
    now: float
    may_be_last: bool = False
    """Whether this may be the conversation's last turn, since its agent loop does not report the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEnd:
    """The end of a conversation."""

    conversation: str
    response_tokens: int | None
    """Length of the whole response; None if nobody reported it."""
    now: float


class Placement(NamedTuple):
    """The server that a waiting request is sent to now."""

    conversation: str
    server: str


class RoutingPolicy(Protocol):
    """Decides which server serves each turn and which turns wait; is deterministic, and each call passes the time.

    Every call returns the requests that are sent to a server now: the new one, others that waited, or none. A
    conversation has one request at a time. Servers may be added and removed at any time, and no request comes in while
    there is no server.
    """

    def acquire(self, request: TurnRequest) -> Sequence[Placement]: ...

    def release(self, release: TurnRelease) -> Sequence[Placement]: ...

    def end(self, end: ConversationEnd) -> Sequence[Placement]: ...

    def add_server(
        self, name: str, capacity: int, now: float, *, max_running: int | None = None
    ) -> Sequence[Placement]:
        """Add a server, or change the limits of a known one.

        Args:
            name: Name of the server.
            capacity: Tokens of its KV cache.
            now: Time in seconds.
            max_running: Maximum number of requests that it runs at once; None if it is not known.
        """
        ...

    def remove_server(self, name: str, now: float) -> Sequence[Placement]:
        """Remove a server with its cached prefixes. No release comes for the turns that run there."""
        ...

    def forget_prefixes(self, conversations: Iterable[str]) -> None:
        """Note that the engines no longer have the prefixes of some conversations, since they have new weights.

        Args:
            conversations: Their ids, which may be unknown.
        """
        ...
