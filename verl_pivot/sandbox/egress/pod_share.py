"""Use of the proxy by one program, and its bounds: connections at once, and bytes in all."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from verl_pivot.errors import ConfigError

T = TypeVar("T")
_LEAST_CONNECTIONS = 16
"""Number of connections that the proxy must have room for, unless there are fewer programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressBounds:
    """Bounds of the proxy."""

    pod_connections: int = 8
    """Connections of one program at once; more wait."""
    pod_bytes: int = 1024**3
    """Bytes of one program or session in all, in both directions together."""
    all_connections: int = 1024
    """Connections of all programs at once; more wait."""
    head_seconds: float = 10.0
    """Seconds for the head of a request, and for the first message of TLS."""
    connect_seconds: float = 20.0
    """Seconds for DNS and the connection to the host."""
    idle_seconds: float = 120.0
    """Seconds without a byte in either direction, after which a connection is closed."""


_FDS_OF_PROCESS, _FDS_OF_POD, _FDS_OF_CONNECTION = 128, 2, 3
"""Number of descriptors that the proxy has open for itself, for each program, and at most for each connection."""


def bounds_for(num_pods: int, num_fds: int) -> EgressBounds:
    """Bounds for `num_pods` programs, with which `num_fds` descriptors are enough.

    Raises:
        ConfigError: If there are too few descriptors for this number of programs.
    """
    usual = EgressBounds()
    room = (num_fds - _FDS_OF_PROCESS - _FDS_OF_POD * num_pods) // _FDS_OF_CONNECTION
    if room < min(num_pods, _LEAST_CONNECTIONS):
        raise ConfigError(
            f"egress: a limit of {num_fds} open files is too low for a proxy of {num_pods} programs at once; raise it, "
            "or lower --slots"
        )
    return replace(usual, all_connections=min(room, usual.pod_connections * num_pods))


class PodShare:
    """Use of the proxy by one program so far."""

    def __init__(self, bounds: EgressBounds) -> None:
        self.bounds = bounds
        self.connections = asyncio.Semaphore(bounds.pod_connections)
        self.lookups = asyncio.Semaphore(2)
        """Look-ups in DNS at once, each of which keeps a thread."""
        self._num_bytes_left = bounds.pod_bytes

    def spend(self, num_bytes: int) -> bool:
        """Count bytes before they are sent on; False if they are more than the program may have."""
        self._num_bytes_left -= num_bytes
        return self._num_bytes_left >= 0

    def send(self, writer: asyncio.StreamWriter, data: bytes) -> bool:
        """Count bytes and send them on; False if they are more than the program may have."""
        if not self.spend(len(data)):
            return False
        writer.write(data)
        return True


class Activity:
    """Time of the latest byte of one connection in either direction: while one side sends, the other may be silent."""

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._latest = asyncio.get_running_loop().time()

    async def of(self, move: Callable[[], Awaitable[T]]) -> T:
        """Result of a read or write, which counts as activity when it is done.

        Args:
            move: Begins to read or write; nothing is lost if that is cancelled and begun again.

        Raises:
            TimeoutError: If no byte moved for too long, in this direction or the other.
        """
        loop = asyncio.get_running_loop()
        while True:
            latest = self._latest
            try:
                async with asyncio.timeout_at(latest + self._idle_seconds) as limit:
                    moved = await move()
            except TimeoutError:
                if self._latest == latest or not limit.expired():
                    raise
            else:
                self._latest = loop.time()
                return moved
