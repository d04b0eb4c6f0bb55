"""verifiers.gathering: questions that come at the same time are answered together, and each gets its own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from verl_pivot.errors import SandboxError
from verl_pivot.verifiers.gathering import Gathering


class Squares:
    """Answers numbers with their squares; several numbers with a 13 get no answer, and one below 0 is an error."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []

    async def __call__(self, key: str, numbers: Sequence[int]) -> list[int | None]:
        self.asked.append((key, list(numbers)))
        await asyncio.sleep(0.01)
        if min(numbers) < 0:
            raise SandboxError("below 0")
        return [None] * len(numbers) if len(numbers) > 1 and 13 in numbers else [number**2 for number in numbers]


async def ask(squares: Squares, *questions: tuple[str, int], max_questions: int = 8) -> list[int | BaseException]:
    async with Gathering(squares, max_questions) as gathering:
        return await asyncio.gather(*(gathering.ask(*each) for each in questions), return_exceptions=True)


async def test_questions_with_one_key_are_answered_by_one_call_and_others_by_another() -> None:
    squares = Squares()

    answers = await ask(squares, ("a", 1), ("b", 2), ("a", 3))

    assert answers == [1, 4, 9]
    assert sorted(squares.asked) == [("a", [1, 3]), ("b", [2])]


async def test_no_call_has_more_questions_than_allowed() -> None:
    squares = Squares()

    answers = await ask(squares, *[("a", number) for number in range(7)], max_questions=3)

    assert answers == [0, 1, 4, 9, 16, 25, 36]
    assert [numbers for _, numbers in squares.asked] == [[0, 1, 2], [3, 4, 5], [6]]


async def test_what_cannot_be_answered_together_is_asked_again_alone() -> None:
    squares = Squares()

    answers = await ask(squares, ("a", 2), ("a", 13))

    assert answers == [4, 169]
    assert sorted(squares.asked) == [("a", [2]), ("a", [2, 13]), ("a", [13])]


async def test_an_error_is_raised_in_every_caller_and_not_kept() -> None:
    squares = Squares()
    async with Gathering(squares, 8) as gathering:
        failed = await asyncio.gather(gathering.ask("a", -1), gathering.ask("a", 2), return_exceptions=True)
        later = await gathering.ask("a", 2)

    assert [str(error) for error in failed] == ["below 0", "below 0"]
    assert later == 4


async def test_a_caller_that_is_cancelled_leaves_the_answer_to_the_others() -> None:
    async with Gathering(Squares(), 8) as gathering:
        first, second = (asyncio.create_task(gathering.ask("a", number)) for number in (2, 3))
        await asyncio.sleep(0.007)
        first.cancel()

        assert await second == 9
        with pytest.raises(asyncio.CancelledError):
            await first
