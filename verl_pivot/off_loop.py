"""Function and the size of its input -> its result, computed in a thread if the input is large."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from verl_pivot.types import Json, Message

P = ParamSpec("P")
R = TypeVar("R")

SIZE_ON_LOOP = 8 * 1024
"""Largest size at which a function runs in the event loop; a thread would cost more time than the function."""
_SIZE_OF_VALUE = 8
"""Number of characters that take about as long to read as one value."""
# One thread for all calls: each thread that runs Python code may hold the interpreter for 5 ms and delay the loop.
_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="off-loop")


async def run_off_loop(size: int, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Result of a function that only computes; the event loop goes on meanwhile if `size` is large.

    Args:
        size: Number of characters that the function reads; a text that it reads twice counts twice.
        function: Function that is safe in a thread of its own.
        args: Positional arguments of the function.
        kwargs: Keyword arguments of the function.
    """
    if size <= SIZE_ON_LOOP:
        return function(*args, **kwargs)
    return await asyncio.wrap_future(_thread.submit(function, *args, **kwargs))


def size_of_message(message: Message) -> int:
    """Characters of a message's text, and the size of the arguments of its calls."""
    return len(message.content) + sum(size_of_value(call.arguments) for call in message.tool_calls)


def size_of_value(value: Json) -> int:
    """Characters of the texts in a JSON value, and `_SIZE_OF_VALUE` for each value in it.

    Counting ends beyond `SIZE_ON_LOOP`, so that it takes little time and a value that contains itself has a size.
    """
    size, left = 0, [value]
    while left and size <= SIZE_ON_LOOP:
        each = left.pop()
        size += _SIZE_OF_VALUE
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, dict):
            size += sum(map(len, each))
            left.extend(each.values())
        elif isinstance(each, list):
            left.extend(each)
    return size
