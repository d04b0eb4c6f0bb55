"""Coroutines -> their results, all done at the same time; the first error ends the others, and is the one raised."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def all_at_once(coroutines: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """[num_coroutines] results, in their order.

    Raises:
        Exception: The first error of any of them; the others have ended then.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
    except BaseExceptionGroup as errors:  # the others are of the same cause, or were cancelled
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
