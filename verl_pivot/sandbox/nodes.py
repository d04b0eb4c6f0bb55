"""What a client knows of its nodes -> where the next request goes, how much may be in flight, when to try again."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

URLS_VARIABLE = "VERL_PIVOT_SANDBOX_URLS"
"""Environment: the services of a client, comma separated."""
TOKEN_VARIABLE = "VERL_PIVOT_SANDBOX_TOKEN"
NAME_VARIABLE = "VERL_PIVOT_SANDBOX_NAME"
"""Environment: which of the sandboxes on a Ray cluster; see `verl-pivot sandbox start --ray --name`."""
FAILURES_TO_OPEN = 3
"""Transport failures in a row."""
SHORTEST_OPEN_SECONDS, LONGEST_OPEN_SECONDS = 0.25, 10.0
SHORTEST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.05, 5.0
MAX_WINDOW = 8192
LOAD_HALF_LIFE_SECONDS = 1.0
"""What a node said of its load is worth half of it after so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The services there are at a moment, and the token that all of them take."""

    urls: tuple[str, ...]
    token: str = field(repr=False)


class Discovery(Protocol):
    """Knows which services there are; asked every few seconds, and when one fails."""

    async def nodes(self) -> Listing:
        """Raises SandboxError if it cannot be told now."""
        ...


@dataclass(slots=True)
class Window:
    """Requests that may be in flight: one more for each full window answered, half after a refusal (AIMD)."""

    size: float
    cut_at: float = float("-inf")

    def answered(self, num_in_flight: int) -> None:
        """Grows only where it is what holds requests back."""
        if 2 * num_in_flight >= self.size:
            self.size = min(self.size + 1.0 / self.size, MAX_WINDOW)

    def overloaded(self, sent_at: float, now: float) -> None:
        """Halve once for all that was sent before the last halving."""
        if sent_at >= self.cut_at:
            self.size, self.cut_at = max(self.size / 2.0, 1.0), now


@dataclass(slots=True)
class Breaker:
    """Keeps requests from a node that does not answer, until a probe of its health says that it does."""

    num_failures: int = 0
    """In a row."""

    @property
    def is_open(self) -> bool:
        return self.num_failures >= FAILURES_TO_OPEN

    def failed(self) -> None:
        self.num_failures += 1

    def trip(self) -> None:
        """Open at once: the node itself says that it stops."""
        self.num_failures = max(self.num_failures, FAILURES_TO_OPEN)

    def succeeded(self) -> None:
        self.num_failures = 0

    def probe_seconds(self, rng: random.Random) -> float:
        """Until the next probe; doubles with each one that fails."""
        doublings = min(self.num_failures - FAILURES_TO_OPEN, 10)
        longest = min(SHORTEST_OPEN_SECONDS * 2**doublings, LONGEST_OPEN_SECONDS)
        return rng.uniform(longest / 2, longest)


@dataclass(slots=True, eq=False)
class Node:
    """One service, as this client sees it."""

    url: str
    token: str = field(default="", repr=False)
    slots: int = 0
    """0 until its health was asked for."""
    window: Window = field(default_factory=lambda: Window(2.0))
    breaker: Breaker = field(default_factory=Breaker)
    num_in_flight: int = 0
    """Requests of ours without an answer."""
    num_batches: int = 0
    num_sessions: int = 0
    """Of ours, open there."""
    reported_load: float = 0.0
    """Requests of others, when it last told."""
    reported_at: float = 0.0
    last_problem: str = ""
    is_gone: bool = False
    """No longer one of the client's: what is in flight there may end, nothing new is sent."""

    @property
    def is_ready(self) -> bool:
        return self.slots > 0 and not self.breaker.is_open and not self.is_gone

    @property
    def room(self) -> int:
        """Requests that may be sent now."""
        return int(self.window.size) - self.num_in_flight

    def has_room(self, num_pending: int) -> bool:
        """For all of them, or for a quarter of the window: one by one, each would cost a request of its own."""
        return self.room > 0 and self.room >= min(num_pending, self.window.size / 4.0)

    def learn(self, slots: int) -> None:
        """Its health is known: begin again."""
        if slots != self.slots:
            self.slots, self.window = slots, Window(2.0 * slots)
        self.breaker.succeeded()

    def report(self, load: int, now: float) -> None:
        self.reported_load, self.reported_at = float(max(0, load - self.num_in_flight)), now

    def refused(self, sent_at: float, now: float) -> None:
        """It is overloaded: send less, and count it as full for a while."""
        self.window.overloaded(sent_at, now)
        self.reported_load, self.reported_at = max(self.reported_load, 2.0 * self.slots), now

    def load(self, now: float) -> float:
        """Work per slot."""
        faded: float = self.reported_load * 0.5 ** ((now - self.reported_at) / LOAD_HALF_LIFE_SECONDS)
        return (self.num_in_flight + self.num_sessions + faded) / self.slots


def choose_node(nodes: Sequence[Node], rng: random.Random, now: float) -> Node:
    """The less loaded of two drawn ones: close to the best, and no herd runs to it (power of two choices)."""
    if len(nodes) == 1:
        return nodes[0]
    first, second = rng.sample(nodes, 2)
    return first if first.load(now) <= second.load(now) else second


def backoff_seconds(num_attempts: int, retry_after: float | None, rng: random.Random) -> float:
    """Before the next attempt: uniform up to a bound that doubles (full jitter), after what the node asked for."""
    longest = min(SHORTEST_BACKOFF_SECONDS * 2 ** min(num_attempts, 20), LONGEST_BACKOFF_SECONDS)
    return (retry_after or 0.0) + rng.uniform(0.0, longest)
