"""Lines of answers: on their way to a client, and kept for requests that come again."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from verl_pivot.node.request_queue import ByteBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one service holds at a time."""

    max_queued: int = 8192
    max_bytes: int = 256 * 1024**2
    """Of bodies, waiting and running requests, and results that were not read yet."""
    kept_seconds: float = 60.0
    """How long a result answers a repeated request."""
    max_kept_bytes: int = 64 * 1024**2
    """Of those results together; beyond it the oldest go first."""


class Outbox:
    """The answers of one HTTP request, in the order in which they come."""

    def __init__(self, expected: int, budget: ByteBudget) -> None:
        self.num_missing = expected
        self._budget = budget
        self._lines: list[bytes] = []
        self._held = 0
        self._arrived = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Every answer came and was taken."""
        return not self.num_missing and not self._lines

    def put(self, line: bytes) -> None:
        self.num_missing -= 1
        self._lines.append(line)
        self._held += len(line)
        self._budget.add(len(line))
        self._arrived.set()

    async def take(self) -> bytes:
        """Every line that came since the last call, waiting for the first; they count as held until `sent`."""
        await self._arrived.wait()
        self._arrived.clear()
        data = b"".join(self._lines)
        self._lines.clear()
        return data

    def sent(self) -> None:
        """What was taken is written, or will never be."""
        waiting = sum(map(len, self._lines))
        self._budget.release(self._held - waiting)
        self._held = waiting

    def close(self) -> None:
        self._lines.clear()
        self.sent()


class Kept(NamedTuple):
    """The answer of an earlier request."""

    fingerprint: int
    """Of what was asked for."""
    line: bytes
    expires: float


class KeptResults:
    """Answers by (client, id), for repeated requests; bounded by age and bytes."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._lines: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self.num_bytes = 0

    def put(self, key: tuple[str, str], fingerprint: int, line: bytes, now: float) -> None:
        if len(line) > self._bounds.max_kept_bytes:
            return
        self._lines[key] = Kept(fingerprint, line, now + self._bounds.kept_seconds)
        self.num_bytes += len(line)
        while self.num_bytes > self._bounds.max_kept_bytes or next(iter(self._lines.values())).expires <= now:
            _, oldest = self._lines.popitem(last=False)
            self.num_bytes -= len(oldest.line)

    def get(self, key: tuple[str, str], now: float) -> Kept | None:
        """None if it is unknown or too old."""
        kept = self._lines.get(key)
        return kept if kept is not None and kept.expires > now else None
