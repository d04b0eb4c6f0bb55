"""A coroutine -> what it returns, and for how much processor time it kept its event loop from going on."""

import asyncio
import time
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class MeasuredSteps(Generic[T]):
    """Awaitable of a coroutine, whose event loop must have nothing else to do.

    A thread that the coroutine waits for keeps the loop as long as it keeps the interpreter, as in one call of a parser
    written in C. So between any two steps of the loop the processor time of the whole process counts.

    Example:
        measured = MeasuredSteps(verifier(action, turn))
        verdict = await measured
        assert measured.longest_seconds < 0.05
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.longest_seconds = 0.0
        """Processor seconds of the longest time in which the loop made no step."""

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
