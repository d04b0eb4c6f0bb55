"""verifiers.asked_once: one execution for concurrent callers, no cached failures, no shared cancellation."""

import asyncio

import pytest

from verl_pivot.verifiers.asked_once import AskedOnce


class Answerer:
    """Answers each question after a while with the number of questions so far."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.seconds = 0.02
        self.begun = asyncio.Event()
        self.failures: list[Exception] = []
        """Errors that the next questions raise instead."""

    async def __call__(self, question: str) -> int:
        self.asked.append(question)
        self.begun.set()
        number = len(self.asked)
        failure = self.failures.pop(0) if self.failures else None
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled.append(question)
            raise
        if failure is not None:
            raise failure
        return number


@pytest.fixture
def answerer() -> Answerer:
    return Answerer()


def get(cache: AskedOnce[str, int], answerer: Answerer, question: str = "a") -> asyncio.Task[int]:
    return asyncio.create_task(cache.get(question, lambda: answerer(question)))


async def test_concurrent_callers_share_one_execution_and_later_ones_its_answer(answerer: Answerer) -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)

    answers = await asyncio.gather(*(get(cache, answerer, question) for question in "aabab"))

    assert answers == [1, 1, 2, 1, 2]
    assert await get(cache, answerer, "b") == 2
    assert answerer.asked == ["a", "b"]


async def test_a_caller_between_the_end_of_the_task_and_the_news_of_it_asks_nothing() -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)
    late: list[asyncio.Task[int]] = []

    async def ask() -> int:
        late.append(asyncio.create_task(cache.get("a", ask)))  # runs after this task, before the caller that waits
        return len(late)

    assert await cache.get("a", ask) == 1
    assert await late[0] == 1
    assert len(late) == 1


def test_another_event_loop_gets_the_answer_without_asking(answerer: Answerer) -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)

    async def ask() -> int:
        return await get(cache, answerer)

    assert [asyncio.run(ask()), asyncio.run(ask())] == [1, 1]
    assert answerer.asked == ["a"]


def test_two_event_loops_at_the_same_time_each_run_a_task_of_their_own(answerer: Answerer) -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)

    async def ask_in_two_loops() -> list[int]:
        return await asyncio.gather(
            get(cache, answerer), asyncio.to_thread(asyncio.run, cache.get("a", lambda: answerer("a")))
        )

    assert sorted(asyncio.run(ask_in_two_loops())) == [1, 2]


async def test_a_failure_is_raised_in_every_waiting_caller_and_not_kept(answerer: Answerer) -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)
    answerer.failures = [ValueError("down")]

    failed = await asyncio.gather(*(get(cache, answerer) for _ in range(3)), return_exceptions=True)

    assert [str(error) for error in failed] == ["down"] * 3
    assert answerer.asked == ["a"]
    assert await get(cache, answerer) == 2


async def test_a_caller_that_asks_again_at_once_does_not_get_the_failure_that_it_just_had(answerer: Answerer) -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)
    answerer.failures = [ValueError("down")]

    async def ask_twice() -> int:
        try:
            return await get(cache, answerer)
        except ValueError:
            return await cache.get("a", lambda: answerer("a"))

    assert await asyncio.gather(*(ask_twice() for _ in range(3))) == [2, 2, 2]
    assert answerer.asked == ["a", "a"]


async def test_a_cancelled_caller_leaves_the_answer_to_the_others(answerer: Answerer) -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)
    first, second = get(cache, answerer), get(cache, answerer)
    await asyncio.sleep(0)
    first.cancel()

    assert await second == 1
    assert first.cancelled()
    assert answerer.cancelled == []


async def test_the_last_cancelled_caller_ends_the_execution_and_the_next_one_asks_again(answerer: Answerer) -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)
    answerer.seconds = 600.0
    callers = [get(cache, answerer) for _ in range(3)]
    await answerer.begun.wait()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)

    answerer.seconds = 0.0
    assert await get(cache, answerer) == 2
    assert answerer.cancelled == ["a"]


async def test_no_more_than_the_given_number_of_answers_is_kept(answerer: Answerer) -> None:
    cache: AskedOnce[str, int] = AskedOnce(2)

    answers = [await get(cache, answerer, question) for question in "abcba"]

    assert answers == [1, 2, 3, 2, 4]
    assert len(cache._answers) == 2
    assert cache._running == {}
