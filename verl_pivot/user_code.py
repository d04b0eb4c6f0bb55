"""Exception of the user's own code -> UserCodeError: one sentence with the class, the method and the line."""

import asyncio
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import verl_pivot
from verl_pivot.errors import UserCodeError

MAX_DETAIL = 500
"""Characters of an exception's text that are kept."""
_LIBRARIES = (
    str(Path(verl_pivot.__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Folders of code that is not the user's."""


def described(error: BaseException) -> str:
    """An exception with the place in the user's code where it arose: "KeyError: 'x' (shop.py, line 7, in score)"."""
    return f"{named(error)} ({place_of(error)})"


def named(error: BaseException) -> str:
    """Type and text of an exception."""
    return f"{type(error).__name__}: {error}"[:MAX_DETAIL]


def place_of(error: BaseException) -> str:
    """File, line and function of the user's code that raised an exception, or of other code if no frame is theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "place unknown"
    own = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}"


def ends_this_task(error: BaseException) -> bool:
    """Whether an exception ends the running task or process, and is none of the user's code.

    A cancellation that nobody asked of the running task is one of a task that the user's code waited for.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


@contextmanager
def own_code(place: str, passed: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Run the user's code: whatever it raises becomes a UserCodeError that names the place.

    Args:
        place: Description of the code: "environment Shop.score".
        passed: Exceptions that are raised as they are.

    Raises:
        UserCodeError: If the code raises any other exception, also one that is no Exception, as some libraries do.
    """
    try:
        yield
    except passed:
        raise
    except BaseException as error:  # the user's code may raise anything
        if ends_this_task(error):
            raise
        raise code_error(place, error) from error


def code_error(place: str, error: BaseException) -> UserCodeError:
    """Error for an exception that the user's code raised.

    Args:
        place: Description of the code: "environment Shop.score".
        error: Exception that it raised.
    """
    return UserCodeError(f"{place} raised {described(error)}")
