"""OwnThread: blocking functions, run one after the other in one thread, beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class OwnThread:
    """One thread for code that blocks and must always run in the same thread, such as an environment with a window.

    A function that hangs blocks the functions queued after it, but neither the event loop nor the end of the process.
    """

    def __init__(self, name: str) -> None:
        """Start no thread yet: the first `run` does.

        Args:
            name: Name of the thread, for debuggers.
        """
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._name, self.has_begun = name, False

    async def run(self, function: Callable[[], ResultT]) -> ResultT:
        """Result of a function, which begins after those queued before it; it runs even if the caller is cancelled."""
        if not self.has_begun:
            self.has_begun = True
            Thread(target=self._work, name=self._name, daemon=True).start()
        future: Future[ResultT] = Future()
        self._jobs.put((function, future))
        return await asyncio.shield(asyncio.wrap_future(future))

    def end(self) -> None:
        """End the thread after the functions that are queued."""
        self._jobs.put(None)

    def _work(self) -> None:
        for function, future in iter(self._jobs.get, None):
            future.set_running_or_notify_cancel()
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001  raised again where the call waits
                future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
            else:
                future.set_result(result)
