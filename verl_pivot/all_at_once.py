"""Coroutines -> their results, all run at the same time; the first error cancels the others and is raised."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def all_at_once(coroutines: Iterable[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """[num_coroutines] results, in the order of the coroutines.

    Raises:
        Exception: The first error of any coroutine; all others have ended by then.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
    except BaseExceptionGroup as errors:  # the other coroutines failed for the same reason, or were cancelled
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
