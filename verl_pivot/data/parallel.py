"""A function over many items in several processes, with the results in the items' order."""

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context
from typing import TypeVar

from verl_pivot.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")

_PR_SET_PDEATHSIG = 1
_AHEAD = 2
"""Items per process that wait while others are worked on."""


def map_in_order(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    prepare: Callable[[], object] | None = None,
) -> Iterator[R]:
    """`function(item)` for each item, in order; at most `3 * workers` items and results are held at a time.

    Args:
        function: Of a module's top level, as other processes have to find it.
        items: Read as they are needed. Each should be worth a tenth of a second or more.
        workers: Processes; 1, or a single item, stays in this one.
        prepare: What each process does first, such as loading verifiers.

    Raises:
        ConfigError: If a process was killed, as the kernel does where memory is short.
        Exception: Whatever `function` raised first.
    """
    if workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {workers}")
    items = iter(items)
    first = list(islice(items, 2))
    if workers == 1 or len(first) < 2:
        if prepare is not None:
            prepare()
        yield from map(function, chain(first, items))
        return
    context = get_context("spawn")  # a fork would copy the threads' locks of pyarrow and DuckDB
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(), prepare))
    try:
        yield from _results(pool, function, chain(first, items), workers)
    except BrokenProcessPool as error:
        raise ConfigError(
            "a worker process was killed, perhaps as memory was short: take fewer --workers and run the same "
            "command again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _results(pool: ProcessPoolExecutor, function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > _AHEAD * workers:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _begin(parent: int, prepare: Callable[[], object] | None) -> None:
    """Ctrl-C is the parent's to handle, and nothing outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if prepare is not None:
        prepare()
