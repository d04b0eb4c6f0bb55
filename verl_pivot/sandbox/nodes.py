"""Nodes of a client: which one gets the next request, how many it gets at once, and when to try again."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

URLS_VARIABLE = "VERL_PIVOT_SANDBOX_URLS"
"""Environment variable: URLs of the services that a client uses, separated by commas."""
TOKEN_VARIABLE = "VERL_PIVOT_SANDBOX_TOKEN"
"""Environment variable: token of these services."""
NAME_VARIABLE = "VERL_PIVOT_SANDBOX_NAME"
"""Environment variable: name of the sandbox on a Ray cluster, as in `verl-pivot sandbox start --ray --name`."""
FAILURES_TO_OPEN = 3
"""Connection failures in a row after which a node's breaker opens."""
SHORTEST_OPEN_SECONDS, LONGEST_OPEN_SECONDS = 0.25, 10.0
"""Seconds between two probes of a node whose breaker is open: at first, and at most."""
SHORTEST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.05, 5.0
"""Longest random pause before another attempt: after the first attempt, and after any number of attempts."""
MAX_WINDOW = 8192
LOAD_HALF_LIFE_SECONDS = 1.0
"""Seconds after which a node's report of its load counts half."""


@dataclass(slots=True)
class Window:
    """Number of requests that may be in flight: one more after each window of answers, half after a refusal (AIMD)."""

    size: float
    halved_at: float = float("-inf")
    """Time of the last halving, on the monotonic clock."""

    def answered(self, num_in_flight: int) -> None:
        """Grow after an answer, but only if at least half of the window is in use."""
        if 2 * num_in_flight >= self.size:
            self.size = min(self.size + 1.0 / self.size, MAX_WINDOW)

    def overloaded(self, sent_at: float, now: float) -> None:
        """Halve after a refusal; further refusals of requests that were sent before that halving change nothing."""
        if sent_at >= self.halved_at:
            self.size, self.halved_at = max(self.size / 2.0, 1.0), now


@dataclass(slots=True)
class Breaker:
    """Circuit breaker: a node that does not answer gets no requests until a probe of its health succeeds."""

    num_failures: int = 0
    """Failures in a row."""

    @property
    def is_open(self) -> bool:
        return self.num_failures >= FAILURES_TO_OPEN

    def failed(self) -> None:
        self.num_failures += 1

    def trip(self) -> None:
        """Open at once, for a node that reports that it is stopping."""
        self.num_failures = max(self.num_failures, FAILURES_TO_OPEN)

    def succeeded(self) -> None:
        self.num_failures = 0

    def probe_seconds(self, rng: random.Random) -> float:
        """Seconds until the next probe, random within bounds that double with each failed probe."""
        doublings = min(self.num_failures - FAILURES_TO_OPEN, 10)
        longest = min(SHORTEST_OPEN_SECONDS * 2**doublings, LONGEST_OPEN_SECONDS)
        return rng.uniform(longest / 2, longest)


@dataclass(slots=True, eq=False)
class Node:
    """One service, as one client sees it."""

    url: str
    token: str = field(default="", repr=False)
    slots: int = 0
    """Programs that the node runs at once; 0 until its health is known."""
    window: Window = field(default_factory=lambda: Window(2.0))
    breaker: Breaker = field(default_factory=Breaker)
    num_in_flight: int = 0
    """This client's requests without an answer."""
    num_batches: int = 0
    """This client's batches without their last answer."""
    num_sessions: int = 0
    """This client's open sessions on the node."""
    reported_load: float = 0.0
    """Requests of other clients, in the node's latest report."""
    reported_at: float = 0.0
    """Time of the latest report, on the monotonic clock."""
    last_problem: str = ""
    is_gone: bool = False
    """Whether the node left the client's list: requests in flight there may end, nothing new is sent."""

    @property
    def is_ready(self) -> bool:
        return self.slots > 0 and not self.breaker.is_open and not self.is_gone

    @property
    def room(self) -> int:
        """Number of requests that may be sent now."""
        return int(self.window.size) - self.num_in_flight

    def has_room(self, num_pending: int) -> bool:
        """Whether all pending requests fit, or at least a quarter of the window: smaller batches would cost more."""
        return self.room > 0 and self.room >= min(num_pending, self.window.size / 4.0)

    def learn(self, slots: int) -> None:
        """Note the slots of a node that answered a health probe; another number than before resets the window."""
        if slots != self.slots:
            self.slots, self.window = slots, Window(2.0 * slots)
        self.breaker.succeeded()

    def report(self, load: int, now: float) -> None:
        """Note the number of requests, this client's included, that the node reports."""
        self.reported_load, self.reported_at = float(max(0, load - self.num_in_flight)), now

    def refused(self, sent_at: float, now: float) -> None:
        """Send less to a node that is overloaded, and count it as full for a while."""
        self.window.overloaded(sent_at, now)
        self.reported_load, self.reported_at = max(self.reported_load, 2.0 * self.slots), now

    def load(self, now: float) -> float:
        """Requests and sessions per slot."""
        faded: float = self.reported_load * 0.5 ** ((now - self.reported_at) / LOAD_HALF_LIFE_SECONDS)
        return (self.num_in_flight + self.num_sessions + faded) / self.slots


def choose_node(nodes: Sequence[Node], rng: random.Random, now: float) -> Node:
    """Draw two nodes and take the less loaded one, so that clients do not all rush to one (power of two choices)."""
    if len(nodes) == 1:
        return nodes[0]
    first, second = rng.sample(nodes, 2)
    return first if first.load(now) <= second.load(now) else second


def backoff_seconds(num_attempts: int, retry_after: float | None, rng: random.Random) -> float:
    """Seconds until the next attempt: those that the node asked for, plus a random part whose bound doubles."""
    longest = min(SHORTEST_BACKOFF_SECONDS * 2 ** min(num_attempts, 20), LONGEST_BACKOFF_SECONDS)
    return (retry_after or 0.0) + rng.uniform(0.0, longest)
