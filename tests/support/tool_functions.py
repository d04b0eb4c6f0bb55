"""Functions that tests and benchmarks use as tools: some work, and the others each fail in a different way."""

import asyncio
import threading
import time
from typing import Annotated

from pydantic import Field

from verl_pivot.tools.contract import ToolError
from verl_pivot.tools.workspace import Workspace

num_flaky_calls = 0


def add(a: int, b: Annotated[int, Field(description="The other one.")] = 1) -> int:
    """Add two numbers.

    Only this first paragraph is told to the policy.
    """
    return a + b


def add_halves(a: Annotated[int, Field(json_schema_extra={"multipleOf": 0.5})], b: str = "") -> float:
    """Halve a number; its schema check may overflow."""
    return a / 2


async def sleep(seconds: float) -> str:
    """Wait some seconds."""
    await asyncio.sleep(seconds)
    return "slept"


def block(seconds: float) -> str:
    """Wait, and block the thread."""
    time.sleep(seconds)
    return "blocked"


def refuse() -> str:
    """Say no."""
    raise ToolError("not today")


def mistake() -> str:
    """Raise a ValueError."""
    raise ValueError("no such order")


def crash() -> str:
    """Raise a ConnectionError."""
    raise ConnectionError("the database is down")


def flaky() -> str:
    """Fail at the first call."""
    global num_flaky_calls
    num_flaky_calls += 1
    if num_flaky_calls == 1:
        raise ConnectionError("try again")
    return "worked"


def hang() -> str:
    """Never answer."""
    threading.Event().wait()
    return ""


def shout(num_characters: int) -> str:
    """Say a lot."""
    return "x" * num_characters


def nothing() -> None:
    """Return None."""


def image() -> bytes:
    """Return bytes."""
    return b"\x89PNG"


class Notes(list[str]):
    """Lines that one trajectory has written down."""


def note(text: str, workspace: Workspace) -> str:
    """Write a line down; return this trajectory's lines."""
    notes = workspace.state(Notes)
    notes.append(text)
    return "; ".join(notes)


num_busy = 0


async def busy(text: str = "") -> str:
    """Return how many calls run at once, in a long text."""
    global num_busy
    num_busy += 1
    said = f"{num_busy}{text} " + "at once " * 10
    await asyncio.sleep(0.01)
    num_busy -= 1
    return said
