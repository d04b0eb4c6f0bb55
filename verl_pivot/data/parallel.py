"""map_in_order: a function applied to many items in several processes, with results in the order of the items."""

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
"""Items per process that are sent ahead of the one whose result is awaited."""


def map_in_order(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    prepare: Callable[[], object] | None = None,
) -> Iterator[R]:
    """Yield `function(item)` for each item, in order; at most `3 * workers` items and results are held at a time.

    Args:
        function: Function at the top level of a module, so that other processes can import it.
        items: Items, read as they are needed; each should take a tenth of a second or more.
        workers: Number of processes; 1 works in this process, as does any number for a single item.
        prepare: Function that each process calls first, for example to load verifiers.

    Raises:
        ConfigError: If a process cannot be started, or was killed, as the kernel does when memory is short.
        Exception: The first exception that `function` raised.
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
            "a worker process was killed, perhaps because memory was short: run the same command again with fewer "
            "--workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _results(pool: ProcessPoolExecutor, function: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    waiting: deque[Future[R]] = deque()
    for item in items:
        waiting.append(_submit(pool, function, item))
        if len(waiting) > _AHEAD * workers:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _submit(pool: ProcessPoolExecutor, function: Callable[[T], R], item: T) -> "Future[R]":
    """Hand over an item; the first call starts the processes."""
    try:
        return pool.submit(function, item)
    except OSError as error:
        for process in pool._processes.values():  # which would wait for items, and Python at its end for them
            process.kill()
        raise ConfigError(
            f"a worker process cannot be started ({error.strerror}): run the same command again with fewer --workers"
        ) from error


def _begin(parent: int, prepare: Callable[[], object] | None) -> None:
    """Set up a worker process: it ignores Ctrl-C, which its parent handles, and is killed when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if prepare is not None:
        prepare()
