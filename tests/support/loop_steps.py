"""A coroutine -> its result, and the longest processor time for which it blocked its event loop."""

import asyncio
import time
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class MeasuredSteps(Generic[T]):
    """Awaitable of a coroutine that measures how long its event loop is blocked; the loop must have no other work.

    A thread that the coroutine waits for blocks the loop while it holds the interpreter's lock, as in one call of a
    parser written in C. So the processor time of the whole process between two steps of the loop counts.

    Example:
        measured = MeasuredSteps(verifier(action, turn))
        verdict = await measured
        assert measured.longest_seconds < 0.05
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.longest_seconds = 0.0
        """Processor seconds of the longest pause between two steps of the loop."""

    def __await__(self) -> Generator[Any, Any, T]:
        return self._measured().__await__()

    async def _measured(self) -> T:
        task = asyncio.ensure_future(self._coroutine)
        last = time.process_time()
        while not task.done():
            await asyncio.sleep(0.0)
            now = time.process_time()
            self.longest_seconds = max(self.longest_seconds, now - last)
            last = now
        return task.result()
