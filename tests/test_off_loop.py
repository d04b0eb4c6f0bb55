"""off_loop: which computations leave the event loop, and how large messages are."""

import asyncio
import threading

import pytest

from verl_pivot.off_loop import SIZE_ON_LOOP, run_off_loop, size_of_message, size_of_value
from verl_pivot.types import Json, Message, Role, ToolCall


async def test_what_is_small_is_computed_in_the_loop_and_what_is_large_in_one_other_thread() -> None:
    here = threading.get_ident()

    small = await run_off_loop(SIZE_ON_LOOP, threading.get_ident)
    large = await asyncio.gather(*(run_off_loop(SIZE_ON_LOOP + 1, threading.get_ident) for _ in range(20)))

    assert small == here
    assert len(set(large)) == 1
    assert here not in large


async def test_the_loop_goes_on_while_something_large_is_computed() -> None:
    is_set_by_the_loop = threading.Event()

    computed = asyncio.create_task(run_off_loop(SIZE_ON_LOOP + 1, is_set_by_the_loop.wait, timeout=60.0))
    await asyncio.sleep(0)
    is_set_by_the_loop.set()

    assert await computed


@pytest.mark.parametrize("size", [0, SIZE_ON_LOOP + 1])
async def test_an_error_is_raised_in_the_caller(size: int) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await run_off_loop(size, int, "x")


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 8),
        ("abc", 11),
        ([1, "ab"], 26),
        ({"key": [True]}, 27),
        ({}, 8),
    ],
)
def test_the_size_of_a_value_is_its_characters_and_eight_for_each_value(value: Json, size: int) -> None:
    assert size_of_value(value) == size


def test_a_message_is_as_large_as_its_text_and_the_arguments_of_its_calls() -> None:
    call = ToolCall(name="f", arguments={"x": "ab"})

    assert size_of_message(Message(role=Role.ASSISTANT, content="four", tool_calls=(call, call))) == 4 + 2 * 19


def test_counting_ends_where_a_value_is_large_or_contains_itself() -> None:
    itself: list[Json] = []
    itself.append(itself)

    assert SIZE_ON_LOOP < size_of_value(itself) <= SIZE_ON_LOOP + 8
    assert size_of_value([[]] * 10**6) <= SIZE_ON_LOOP + 8
