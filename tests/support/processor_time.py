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
"""Growth of the processor time above which a test fails; quadratic growth is 64 times."""
MAX_SECONDS = 30
"""Processor seconds after which a measurement is killed."""
_MIN_SECONDS = 0.001
"""Smallest processor time of the smaller text; shorter times are too imprecise."""


def seconds_of(read: Callable[[str], object], text: str, num_runs: int = 1) -> float:
    """Processor seconds of the fastest of some runs."""
    times = []
    for _ in range(num_runs):
        begin = time.process_time()  # of all threads, since another thread compares long texts
        read(text)
        times.append(time.process_time() - begin)
    return min(times)


def growth(read: Callable[[str], object], write: Callable[[int], str], num_chars: int) -> float:
    """Factor by which a text of eight times the length takes longer; measured again if it is too large.

    Args:
        read: Reader whose time is measured.
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
    """A worker process, which starts again after a function was killed.

    The limit is processor time and not wall-clock time, so that a busy machine changes nothing.
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
