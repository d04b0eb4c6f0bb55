"""A coroutine -> what it returns, and the processor time of its longest step on the event loop."""

import time
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class MeasuredSteps(Generic[T]):
    """Awaitable of a coroutine; what other threads do for it is not counted.

    Example:
        measured = MeasuredSteps(verifier(action, turn))
        verdict = await measured
        assert measured.longest_seconds < 0.05
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self.longest_seconds = 0.0
        """Processor seconds of the longest step so far."""

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._coroutine.__await__()
        while True:
            begin = time.thread_time()
            try:
                awaited = next(steps)
            except StopIteration as end:
                returned: T = end.value
                return returned
            finally:
                self.longest_seconds = max(self.longest_seconds, time.thread_time() - begin)
            yield awaited
