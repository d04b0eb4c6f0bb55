"""Alive nodes and the health of their services -> which services to start and to end, and when to try again."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from verl_pivot.sandbox.wire import Health

MAX_FAILED_CHECKS = 3
"""Of one service in a row; then it is ended and started anew."""
MAX_FAILURES = 5
"""Of one node's service in a row; then it is left alone for long, or until somebody asks for it."""
FAILED_SECONDS = 600.0
SHORTEST_PAUSE_SECONDS = 1.0
"""Before the start after a failure; doubles with each in a row."""
STABLE_SECONDS = 60.0
"""A service that served for so long has made up for the failures before."""


class Phase(StrEnum):
    """Where a node's service stands."""

    WAITING = "waiting"
    """To be started, after a pause if it failed."""
    STARTING = "starting"
    SERVING = "serving"
    ENDING = "ending"
    """It stopped answering, and is ended before another is started."""
    FAILED = "failed"
    """Too often in a row."""


@dataclass(slots=True, kw_only=True)
class Place:
    """One node, and the one service it should have."""

    node_id: str
    address: str
    """The node's, where its service listens."""
    phase: Phase = Phase.WAITING
    start_at: float = 0.0
    """On the supervisor's monotonic clock, while it waits or failed."""
    url: str = ""
    """Empty unless it serves."""
    health: Health | None = None
    """As it was last told."""
    serving_since: float = 0.0
    num_failures: int = 0
    """In a row."""
    num_failed_checks: int = 0
    """In a row."""
    problem: str = ""
    """The latest; what was wrong stays known after it is mended."""

    def starting(self) -> None:
        self.phase = Phase.STARTING

    def serves(self, url: str, health: Health, now: float) -> None:
        self.phase, self.url, self.serving_since = Phase.SERVING, url, now
        self.check_passed(health, now)

    def ending(self) -> None:
        self.phase = Phase.ENDING

    def failed(self, problem: str, now: float) -> None:
        """It did not start, or it is no good any more."""
        self.num_failures += 1
        self.url, self.health, self.num_failed_checks, self.problem = "", None, 0, problem
        if self.num_failures < MAX_FAILURES:
            self.phase, self.start_at = Phase.WAITING, now + SHORTEST_PAUSE_SECONDS * 2 ** (self.num_failures - 1)
        else:
            self.phase, self.start_at = Phase.FAILED, now + FAILED_SECONDS

    def check_passed(self, health: Health, now: float) -> None:
        self.health, self.num_failed_checks = health, 0
        if now - self.serving_since >= STABLE_SECONDS:
            self.num_failures = 0

    def check_failed(self, problem: str) -> None:
        self.num_failed_checks += 1
        self.problem = problem

    def try_again(self) -> None:
        """Somebody asks for it: what was before does not count."""
        if self.phase in (Phase.WAITING, Phase.FAILED):
            self.phase, self.num_failures, self.start_at = Phase.WAITING, 0, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Node ids, by what is to be done now."""

    forget: tuple[str, ...]
    """They left the cluster."""
    start: tuple[str, ...]
    end: tuple[str, ...]
    """Their services stopped answering."""


def plan(alive: Mapping[str, str], places: Mapping[str, Place], now: float) -> Plan:
    """What brings the services in step with the nodes.

    Args:
        alive: Node id -> address.
        places: Node id -> what is known of it; a node that is not there has just joined.
    """
    known = [places[node_id] for node_id in alive if node_id in places]
    joined = [node_id for node_id in alive if node_id not in places]
    idle = [place for place in known if place.phase in (Phase.WAITING, Phase.FAILED)]
    serving = [place for place in known if place.phase is Phase.SERVING]
    return Plan(
        forget=tuple(node_id for node_id in places if node_id not in alive),
        start=(*joined, *(place.node_id for place in idle if place.start_at <= now)),
        end=tuple(place.node_id for place in serving if place.num_failed_checks >= MAX_FAILED_CHECKS),
    )
