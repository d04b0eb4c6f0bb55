"""Cache of awaited answers: callers that ask the same question at the same time share one execution."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cachetools import LRUCache

KeyT = TypeVar("KeyT", bound=Hashable)
AnswerT = TypeVar("AnswerT")


class AskedOnce(Generic[KeyT, AnswerT]):
    """Cache of answers by key. While a key is being answered, its task is shared; afterwards its answer is kept.

    Tasks are shared within one event loop, answers by all loops of the process. An error is raised in every caller
    that waits for the answer and is not kept: the next caller asks again.

    Example:
        _rows: AskedOnce[str, Rows] = AskedOnce(1024)
        rows = await _rows.get(query, lambda: execute(query))
    """

    def __init__(self, max_answers: int) -> None:
        """Start empty.

        Args:
            max_answers: Number of answers kept. When there are more, the least recently used one is dropped.
        """
        self._answers: LRUCache[KeyT, AnswerT] = LRUCache(max_answers)
        self._running: dict[tuple[asyncio.AbstractEventLoop, KeyT], _Running[AnswerT]] = {}

    async def get(self, key: KeyT, ask: Callable[[], Coroutine[Any, Any, AnswerT]]) -> AnswerT:
        """The answer for `key`; `ask` is called only if there is no answer yet and no task that awaits it.

        If a caller is cancelled, the task goes on for the others. If the last caller is cancelled, so is the task.
        """
        if key in self._answers:
            return self._answers[key]
        place = (asyncio.get_running_loop(), key)
        running = self._running.get(place)
        if running is None or running.has_failed:
            running = self._running[place] = _Running(asyncio.create_task(ask()))
        running.num_waiting += 1
        try:
            self._answers[key] = answer = await asyncio.shield(running.task)
        finally:
            running.num_waiting -= 1
            if running.num_waiting == 0:
                running.task.cancel()
                if self._running.get(place) is running:
                    del self._running[place]
        return answer


@dataclass(slots=True)
class _Running(Generic[AnswerT]):
    task: asyncio.Task[AnswerT]
    num_waiting: int = 0
    """Callers that wait for the task, or are about to be told its answer."""

    @property
    def has_failed(self) -> bool:
        """Whether the task ended without an answer."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)
