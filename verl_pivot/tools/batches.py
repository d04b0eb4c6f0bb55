"""Batcher: items of concurrent callers -> batches, each of which one call answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")


class _Gathered(Generic[ItemT, AnswerT]):
    """Items that wait, and the task that answers them."""

    def __init__(self) -> None:
        self.items: list[ItemT] = []
        self.answers: asyncio.Task[Sequence[AnswerT]] | None = None


class Batcher(Generic[ItemT, AnswerT]):
    """Gathers the items of callers of one event loop while earlier batches are being answered.

    A caller that is cancelled does not disturb the others of its batch. An error of a batch reaches all its callers.

    Example:
        batcher = Batcher(search_all, max_items=64)
        documents = await batcher.ask("capital of France")
    """

    def __init__(
        self, answer: Callable[[list[ItemT]], Awaitable[Sequence[AnswerT]]], *, max_items: int, max_running: int = 1
    ) -> None:
        """Make a batcher without items.

        Args:
            answer: Answers a batch: one answer for each item, in order.
            max_items: Most items of a batch, >= 1.
            max_running: Batches that are answered at once, >= 1.
        """
        self._answer = answer
        self._max_items = max_items
        self._room = asyncio.Semaphore(max_running)
        self._gathering: _Gathered[ItemT, AnswerT] | None = None

    async def ask(self, item: ItemT) -> AnswerT:
        """The answer to one item; raises what the batch raised."""
        batch = self._gathering
        if batch is None:
            batch = self._gathering = _Gathered()
            batch.answers = asyncio.create_task(self._answers(batch))
            batch.answers.add_done_callback(_take_error)
        place = len(batch.items)
        batch.items.append(item)
        if len(batch.items) == self._max_items:
            self._gathering = None
        assert batch.answers is not None
        return (await asyncio.shield(batch.answers))[place]

    async def _answers(self, batch: _Gathered[ItemT, AnswerT]) -> Sequence[AnswerT]:
        async with self._room:
            if self._gathering is batch:
                self._gathering = None
            return await self._answer(batch.items)


def _take_error(task: asyncio.Task[Sequence[AnswerT]]) -> None:
    """Retrieve a batch's error, which asyncio would report if every caller was cancelled."""
    if not task.cancelled():
        task.exception()
