"""The time limit of one call, which stands still while the call waits for its turn at something that many share."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class _Call:
    """The clock of a call, stopped while it has waits."""

    limit: asyncio.Timeout
    num_waits: int = 0
    seconds_left: float = 0.0
    """Seconds that were left when the first of the waits began."""
    is_over: bool = False

    def begin_wait(self) -> None:
        if not self.num_waits:
            at = self.limit.when()
            assert at is not None
            self.seconds_left = at - asyncio.get_running_loop().time()
            self.limit.reschedule(None)
        self.num_waits += 1

    def end_wait(self) -> None:
        self.num_waits -= 1
        if not self.num_waits and not self.is_over:
            self.limit.reschedule(asyncio.get_running_loop().time() + self.seconds_left)


_running: ContextVar[_Call | None] = ContextVar("verl_pivot_limited_call", default=None)


@asynccontextmanager
async def call_limit(seconds: float | None) -> AsyncGenerator[asyncio.Timeout]:
    """Limit what happens inside to a number of seconds, those of `uncounted_wait` not counted.

    Args:
        seconds: The limit; None: no limit.

    Raises:
        TimeoutError: If the time is over.
    """
    async with asyncio.timeout(seconds) as limit:
        call = _Call(limit)
        token = _running.set(None if seconds is None else call)
        try:
            yield limit
        finally:
            call.is_over = True
            _running.reset(token)


@contextmanager
def uncounted_wait() -> Iterator[None]:
    """Stop the clock of the call that waits inside, if there is one: nobody is to blame for a queue of others.

    Example:
        with uncounted_wait():
            await room.acquire()
    """
    call = _running.get()
    if call is None or call.is_over or call.limit.expired():
        yield
        return
    call.begin_wait()
    try:
        yield
    finally:
        call.end_wait()
