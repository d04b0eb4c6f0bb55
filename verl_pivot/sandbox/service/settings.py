"""Settings of the service of one node: its address, token and limits."""

from dataclasses import dataclass, field

from verl_pivot.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Limits on what one service holds at a time."""

    max_queued: int = 8192
    """Requests that may wait."""
    max_bytes: int = 256 * 1024**2
    """Total bytes of all bodies, waiting and running requests, and results that are not read yet."""
    kept_seconds: float = 60.0
    """Seconds for which a result is kept to answer a repeated request; until the request's deadline, if it is later."""
    max_kept_bytes: int = 64 * 1024**2
    """Total bytes of all results kept for repeated requests; beyond this, the oldest are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Address, token and limits of one service."""

    token: str
    host: str = "127.0.0.1"
    port: int = 0
    """Port to listen on; 0 takes a free one."""
    node: str = ""
    """Name of this node in results; host:port if empty."""
    backend_name: str = ""
    """Name of the backend that /healthz shows."""
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    max_sessions: int = 1024
    session_idle_seconds: float = 3600.0
    """Seconds until an unused session is closed, as its client may be gone; a rollout that an update of the policy
    interrupts uses none meanwhile."""
    drain_seconds: float = 10.0
    """Seconds that running programs get when the service stops."""
    body_seconds: float = 30.0
    """Seconds for a body to arrive."""
    write_seconds: float = 30.0
    """Seconds for a client to read what was written."""

    def __post_init__(self) -> None:
        if len(self.token) < 16:
            raise ConfigError(f"the sandbox's token must have at least 16 characters, got {len(self.token)}")
