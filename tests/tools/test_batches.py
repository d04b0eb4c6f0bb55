"""Batcher: which callers share a batch, and whom errors and cancellations reach."""

import asyncio
from collections.abc import Sequence

import pytest

from verl_pivot.tools.batches import Batcher


class Doubling:
    """Doubles numbers once it may, and records the batches that it got."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [2 * number for number in numbers]


async def test_callers_that_come_while_a_batch_is_answered_share_the_next_one() -> None:
    doubling = Doubling()
    batcher = Batcher(doubling, max_items=3)

    first = [asyncio.ensure_future(batcher.ask(number)) for number in (1, 2)]
    await asyncio.sleep(0.01)
    later = [asyncio.ensure_future(batcher.ask(number)) for number in (3, 4, 5, 6)]
    await asyncio.sleep(0.01)
    assert doubling.batches == [[1, 2]]
    doubling.may_answer.set()

    assert await asyncio.gather(*first, *later) == [2, 4, 6, 8, 10, 12]
    assert doubling.batches == [[1, 2], [3, 4, 5], [6]]


async def test_batches_run_at_once_up_to_the_limit() -> None:
    doubling = Doubling()
    batcher = Batcher(doubling, max_items=1, max_running=2)

    asked = [asyncio.ensure_future(batcher.ask(number)) for number in (1, 2, 3)]
    await asyncio.sleep(0.01)
    assert doubling.batches == [[1], [2]]
    doubling.may_answer.set()

    assert await asyncio.gather(*asked) == [2, 4, 6]


async def test_an_error_reaches_all_callers_of_its_batch_and_no_later_one() -> None:
    doubling = Doubling()
    doubling.error = OSError("down")
    doubling.may_answer.set()
    batcher = Batcher(doubling, max_items=8)

    failed = await asyncio.gather(batcher.ask(1), batcher.ask(2), return_exceptions=True)
    doubling.error = None

    assert [str(error) for error in failed] == ["down", "down"]
    assert await batcher.ask(3) == 6


async def test_a_caller_that_gives_up_takes_no_answer_from_another() -> None:
    doubling = Doubling()
    batcher = Batcher(doubling, max_items=8)

    gives_up, waits = (asyncio.ensure_future(batcher.ask(number)) for number in (1, 2))
    await asyncio.sleep(0.01)
    gives_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    doubling.may_answer.set()

    assert await waits == 4
