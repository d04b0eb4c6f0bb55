"""Waiting requests of many clients -> the next to start: fair between clients, in order of arrival within one."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

WorkT = TypeVar("WorkT")
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 5.0
HISTORY = 64
"""Number of executions over which the mean run time is taken."""


class FairQueue(Generic[WorkT]):
    """Round robin over clients; every operation but `pop_newest_of_longest` takes constant time."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, OrderedDict[str, WorkT]] = OrderedDict()
        """{client: {key: work that waits}}; the client whose turn is next comes first."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def num_clients(self) -> int:
        return len(self._queues)

    def num_waiting(self, client: str) -> int:
        return len(self._queues.get(client, ()))

    def push(self, client: str, key: str, work: WorkT) -> None:
        queue = self._queues.setdefault(client, OrderedDict())
        assert key not in queue, f"{key} waits already"
        queue[key] = work
        self._size += 1

    def pop(self) -> WorkT:
        """The oldest work of the client whose turn it is; the client goes to the end of the round."""
        client, queue = self._queues.popitem(last=False)
        _, work = queue.popitem(last=False)
        if queue:
            self._queues[client] = queue
        self._size -= 1
        return work

    def remove(self, client: str, key: str) -> WorkT | None:
        """Take out the work that waits under `key`; None if there is none."""
        queue = self._queues.get(client)
        if queue is None or key not in queue:
            return None
        return self._take(client, key)

    def pop_newest_of_longest(self, than: int) -> WorkT | None:
        """Take out the newest work of the client with the most work; None if no client has more than `than`."""
        client = max(self._queues, key=lambda name: len(self._queues[name]), default=None)
        if client is None or len(self._queues[client]) <= than:
            return None
        return self._take(client, next(reversed(self._queues[client])))

    def _take(self, client: str, key: str) -> WorkT:
        queue = self._queues[client]
        work = queue.pop(key)
        if not queue:
            del self._queues[client]
        self._size -= 1
        return work


@dataclass(slots=True, kw_only=True)
class ServiceRate:
    """Mean time for which an execution holds its slot, as a moving average."""

    num_slots: int
    mean_seconds: float = 0.0
    """0 until the first execution has ended."""
    num_seen: int = 0

    def observe(self, seconds: float) -> None:
        self.num_seen = min(self.num_seen + 1, HISTORY)
        self.mean_seconds += (seconds - self.mean_seconds) / self.num_seen

    def wait_seconds(self, num_ahead: int) -> float:
        """Expected time until `num_ahead` requests have started."""
        return num_ahead * self.mean_seconds / self.num_slots


def num_ahead(queue: FairQueue[WorkT], client: str) -> int:
    """Requests that start before the next one of `client`: other clients get one turn for each of its turns."""
    waiting = queue.num_waiting(client)
    num_clients = queue.num_clients + (waiting == 0)
    return min(len(queue), (waiting + 1) * num_clients - 1)


def retry_after_seconds(wait_seconds: float) -> float:
    """Seconds after which a refused request should be tried again: half of the expected wait, within bounds."""
    return min(max(wait_seconds / 2, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)


class ByteBudget:
    """Bytes that a service holds at this moment; each `reserve` or `add` is followed by a `release`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def reserve(self, num_bytes: int) -> bool:
        """Take bytes if they are free; False if they are not."""
        if self.used + num_bytes > self.limit:
            return False
        self.used += num_bytes
        return True

    def add(self, num_bytes: int) -> None:
        """Take bytes even beyond the limit, for a result that exists already."""
        self.used += num_bytes

    def release(self, num_bytes: int) -> None:
        self.used -= num_bytes
        assert self.used >= 0, f"{-self.used} bytes released that were not held"
