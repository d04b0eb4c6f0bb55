"""Alive nodes and the health of their services -> which services to start or end now, and when to try again."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from verl_pivot.sandbox.wire import Health

MAX_FAILED_CHECKS = 3
"""Failed health checks in a row after which a service is ended and started anew."""
MAX_FAILURES = 5
"""Failures of a node's service in a row after which the node is left alone for FAILED_SECONDS."""
FAILED_SECONDS = 600.0
"""Seconds that a node is left alone after MAX_FAILURES, unless `try_again` is called."""
SHORTEST_PAUSE_SECONDS = 1.0
"""Seconds from a first failure to the next start; doubled with each further failure in a row."""
STABLE_SECONDS = 60.0
"""Seconds of service after which earlier failures are forgotten."""


class Phase(StrEnum):
    """Phase of a node's service."""

    WAITING = "waiting"
    """The service is to be started, after a pause if it failed before."""
    STARTING = "starting"
    SERVING = "serving"
    ENDING = "ending"
    """The service stopped answering and is being ended, before another one is started."""
    FAILED = "failed"
    """The service failed MAX_FAILURES times in a row, and is left alone for FAILED_SECONDS."""


@dataclass(slots=True, kw_only=True)
class ServicePlace:
    """One node with the one service that it should have."""

    node_id: str
    address: str
    """IP address of the node, on which its service listens."""
    phase: Phase = Phase.WAITING
    start_at: float = 0.0
    """Time of the next start on the supervisor's monotonic clock, while the service waits or failed."""
    url: str = ""
    """URL of the service; empty unless it serves."""
    health: Health | None = None
    """Latest answer of the service's /healthz."""
    serving_since: float = 0.0
    """Time since which the service serves, on the supervisor's monotonic clock."""
    num_failures: int = 0
    """Failures in a row."""
    num_failed_checks: int = 0
    """Failed health checks in a row."""
    problem: str = ""
    """Latest problem; kept after the service is well again."""

    def starting(self) -> None:
        self.phase = Phase.STARTING

    def serves(self, url: str, health: Health, now: float) -> None:
        self.phase, self.url, self.serving_since = Phase.SERVING, url, now
        self.check_passed(health, now)

    def ending(self) -> None:
        self.phase = Phase.ENDING

    def failed(self, problem: str, now: float) -> None:
        """Note that the service did not start, or that it had to be ended."""
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
        """Start at once, whatever failed before, because a user asks for it."""
        if self.phase in (Phase.WAITING, Phase.FAILED):
            self.phase, self.num_failures, self.start_at = Phase.WAITING, 0, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """Actions to take now, each a list of node ids."""

    forget: tuple[str, ...]
    """Nodes that left the cluster."""
    start: tuple[str, ...]
    """Nodes whose service is to be started."""
    end: tuple[str, ...]
    """Nodes whose service stopped answering."""


def plan(alive: Mapping[str, str], places: Mapping[str, ServicePlace], now: float) -> PlacementPlan:
    """Compare the nodes that are alive with the services that are known.

    Args:
        alive: {node id: address}.
        places: {node id: its service}; a node that is missing here has just joined.
        now: Time on the supervisor's monotonic clock.
    """
    known = [places[node_id] for node_id in alive if node_id in places]
    joined = [node_id for node_id in alive if node_id not in places]
    idle = [place for place in known if place.phase in (Phase.WAITING, Phase.FAILED)]
    serving = [place for place in known if place.phase is Phase.SERVING]
    return PlacementPlan(
        forget=tuple(node_id for node_id in places if node_id not in alive),
        start=(*joined, *(place.node_id for place in idle if place.start_at <= now)),
        end=tuple(place.node_id for place in serving if place.num_failed_checks >= MAX_FAILED_CHECKS),
    )
