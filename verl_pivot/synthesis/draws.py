"""Draws, one after the other -> the first one without a problem, or the problem of the last one."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from verl_pivot.data.json_values import BadRowError
from verl_pivot.types import Malformed

DrawnT = TypeVar("DrawnT")


async def first_good(
    draw: Callable[[int], Awaitable[DrawnT | Malformed]], numbers: Iterable[int]
) -> DrawnT | Malformed:
    """The first draw without a problem, or the problem of the last one.

    Args:
        draw: Makes the draw of a number, which gives its seed.
        numbers: At least one number; the numbers behind that of the first good draw are not used.
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
    """What was drawn.

    Raises:
        BadRowError: If it has a problem.
    """
    if isinstance(drawn, Malformed):
        raise BadRowError(drawn.reason, drawn.detail)
    return drawn
