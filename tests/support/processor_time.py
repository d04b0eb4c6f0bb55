"""Growth of a reader's processor time with the length of its text, measured in a process that may be killed."""

import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

GROWTH = 8
"""Factor by which the larger text is longer."""
MAX_RATIO = 3 * GROWTH
"""Growth of the processor time that fails a test; a reader whose time grows with the square needs 64 times."""
MAX_SECONDS = 30
"""Processor seconds after which a measurement is killed."""
_MIN_SECONDS = 0.001
"""Time under which the smaller text's time is not measured well."""


def seconds_of(read: Callable[[str], object], text: str, num_runs: int = 1) -> float:
    """Processor seconds of the fastest of some runs."""
    times = []
    for _ in range(num_runs):
        begin = time.process_time()  # with that of the thread in which long texts are compared
        read(text)
        times.append(time.process_time() - begin)
    return min(times)


def growth(read: Callable[[str], object], write: Callable[[int], str], num_chars: int) -> float:
    """Times that a text of eight times the length takes longer; measured again if that is too many.

    Args:
        read: Reader.
        write: Number of characters -> the text, about as long.
        num_chars: Length of the smaller text.
    """
    small, large = write(num_chars), write(GROWTH * num_chars)
    for num_runs in (1, 3, 5):
        ratio = seconds_of(read, large, num_runs) / max(seconds_of(read, small, num_runs), _MIN_SECONDS)
        if ratio <= MAX_RATIO:
            break
    return ratio


class TooMuchProcessorTimeError(AssertionError):
    """A function was killed at its limit of processor time."""


class LimitedWorker:
    """One process, started anew after each function that was killed.

    Processor time and not the clock is limited, so that a busy machine changes nothing.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def run(self, max_seconds: int, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Result of a function that the process can import.

        Raises:
            TooMuchProcessorTimeError: If the function took more than `max_seconds` of processor time.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        try:
            return self._pool.submit(_run_limited, max_seconds, function, *args, **kwargs).result()
        except BrokenProcessPool as error:
            self.close()
            shown = ", ".join(repr(each)[:80] for each in args)
            raise TooMuchProcessorTimeError(
                f"{function.__name__}({shown}) was killed, as it is after {max_seconds} seconds of processor time"
            ) from error

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _run_limited(max_seconds: int, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + max_seconds, hard))
    return function(*args, **kwargs)
