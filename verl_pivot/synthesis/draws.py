"""Draws, one after the other -> the first draw without a problem, or the problem of the last draw; refused drafts."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from verl_pivot.data.json_values import BadRowError
from verl_pivot.errors import QuestionRefusedError
from verl_pivot.synthesis.drafts import QUESTION_REFUSED, Draft
from verl_pivot.types import Malformed

DrawnT = TypeVar("DrawnT")


async def first_good(
    draw: Callable[[int], Awaitable[DrawnT | Malformed]], numbers: Iterable[int]
) -> DrawnT | Malformed:
    """The first draw without a problem, or the problem of the last draw.

    Args:
        draw: Function that makes a draw, given its number, from which its seed derives.
        numbers: Numbers of the draws, at least one; numbers after the first good draw are not used.
    """
    problem: Malformed | None = None
    for number in numbers:
        drawn = await draw(number)
        if not isinstance(drawn, Malformed):
            return drawn
        problem = drawn
    assert problem is not None, "there is at least one attempt"
    return problem


def good(drawn: DrawnT | Malformed) -> DrawnT:
    """The drawn value.

    Raises:
        BadRowError: If the draw has a problem.
    """
    if isinstance(drawn, Malformed):
        raise BadRowError(drawn.reason, drawn.detail)
    return drawn


async def made_or_refused(draft: Draft, making: Awaitable[Draft]) -> Draft:
    """What a step makes of one of several drafts; if an endpoint refuses a question, the draft alone, rejected.

    Args:
        draft: The draft from which it is made.
        making: The step's work at this draft.
    """
    try:
        return await making
    except QuestionRefusedError as error:
        return draft.rejected(QUESTION_REFUSED, str(error))
