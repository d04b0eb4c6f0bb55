"""Lines of answers: waiting to be written to a client, and kept for requests that are repeated."""

import asyncio
import math
from collections import OrderedDict
from typing import NamedTuple

from verl_pivot.sandbox.service.request_queue import ByteBudget
from verl_pivot.sandbox.service.settings import ServiceLimits


class Outbox:
    """The lines that answer one HTTP request, in the order in which they come."""

    def __init__(self, num_expected: int, budget: ByteBudget) -> None:
        self.num_missing = num_expected
        self._budget = budget
        self._lines: list[bytes] = []
        self._num_held_bytes = 0
        self._arrived = asyncio.Event()
        self._is_closed = False
        self._emptied = asyncio.Event()

    @property
    def is_finished(self) -> bool:
        """Whether every line has come and was taken."""
        return not self.num_missing and not self._lines

    def put(self, line: bytes) -> None:
        self.num_missing -= 1
        self._lines.append(line)
        self._num_held_bytes += len(line)
        self._budget.add(len(line))
        self._arrived.set()

    async def put_more(self, line: bytes) -> None:
        """Put a line that is not the last of its request; returns when it was written, or never will be."""
        if self._is_closed:
            return
        self._lines.append(line)
        self._num_held_bytes += len(line)
        self._budget.add(len(line))
        self._emptied.clear()
        self._arrived.set()
        await self._emptied.wait()

    async def take(self) -> bytes:
        """All lines that came since the last call, after waiting for one; they count as held until `sent`."""
        await self._arrived.wait()
        self._arrived.clear()
        data = b"".join(self._lines)
        self._lines.clear()
        return data

    def sent(self) -> None:
        """Release the bytes of the lines that were taken: they are written, or never will be."""
        num_waiting_bytes = sum(map(len, self._lines))
        self._budget.release(self._num_held_bytes - num_waiting_bytes)
        self._num_held_bytes = num_waiting_bytes
        if not self._lines:
            self._emptied.set()

    def close(self) -> None:
        """Drop the lines that nobody will take."""
        self._is_closed = True
        self._lines.clear()
        self.sent()


class KeptLine(NamedTuple):
    """The answer to an earlier request."""

    fingerprint: int
    """Hash of the request's content."""
    line: bytes
    expires: float
    """Time from which it is not returned any more."""


class KeptResults:
    """Answers to earlier requests by (client, id), for repeated requests; limited in age and size."""

    def __init__(self, limits: ServiceLimits) -> None:
        self._limits = limits
        self._lines: OrderedDict[tuple[str, str], KeptLine] = OrderedDict()
        self.num_bytes = 0

    def put(
        self, key: tuple[str, str], fingerprint: int, line: bytes, *, now: float, deadline: float = -math.inf
    ) -> None:
        """Keep an answer for `kept_seconds`, and as long as its client may ask again.

        Args:
            key: Client and id of the request.
            fingerprint: Hash of its content.
            line: The answer.
            now: Time of the answer.
            deadline: Time after which the client does not ask again.
        """
        if len(line) > self._limits.max_kept_bytes:
            return
        if key in self._lines:  # it had expired, so the request ran again
            self.num_bytes -= len(self._lines.pop(key).line)
        self._lines[key] = KeptLine(fingerprint, line, max(now + self._limits.kept_seconds, deadline))
        self.num_bytes += len(line)
        while self.num_bytes > self._limits.max_kept_bytes or self._has_expired(now):
            _, oldest = self._lines.popitem(last=False)
            self.num_bytes -= len(oldest.line)

    def _has_expired(self, now: float) -> bool:
        """Whether the oldest answer has expired. Others that expired are dropped after it; `get` ignores them."""
        return bool(self._lines) and next(iter(self._lines.values())).expires <= now

    def get(self, key: tuple[str, str], now: float) -> KeptLine | None:
        """The answer to an earlier request; None if it is unknown or too old."""
        kept = self._lines.get(key)
        return kept if kept is not None and kept.expires > now else None
