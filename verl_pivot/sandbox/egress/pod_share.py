"""What one program may take of the proxy: connections at once, and bytes in all."""

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressBounds:
    """Bounds of the proxy."""

    pod_connections: int = 16
    """Connections of one program at once; more wait."""
    pod_bytes: int = 1024**3
    """Bytes of one program or session in all, in both directions together."""
    all_connections: int = 1024
    """Connections of all programs at once; more wait, and are refused after `connect_seconds`."""
    head_seconds: float = 10.0
    """Seconds for the head of a request, and for the first message of TLS."""
    connect_seconds: float = 20.0
    """Seconds for DNS and the connection to the host."""
    idle_seconds: float = 120.0
    """Seconds without a byte in one direction, after which a connection is closed."""


class PodShare:
    """What one program has taken so far."""

    def __init__(self, bounds: EgressBounds) -> None:
        self.connections = asyncio.Semaphore(bounds.pod_connections)
        self.lookups = asyncio.Semaphore(2)
        """Look-ups in DNS at once, each of which keeps a thread."""
        self._num_bytes_left = bounds.pod_bytes

    def spend(self, num_bytes: int) -> bool:
        """Count bytes before they are sent on; False if they are more than the program may have."""
        self._num_bytes_left -= num_bytes
        return self._num_bytes_left >= 0
