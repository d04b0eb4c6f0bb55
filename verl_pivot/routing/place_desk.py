"""PlaceDesk: turns that wait for a server, for each of which no call of the router's actor waits."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from verl_pivot.errors import EngineError

_POLL_SECONDS = 10.0
"""Longest time that `ended_waits` takes to answer."""
_SILENT_SECONDS = 60.0
"""Seconds without a call of a worker after which it counts as dead."""


class PlaceRequest(TypedDict):
    """One turn that needs a server, as a worker sends it."""

    request_id: str
    num_tokens: int
    """Tokens of the prompt and the response so far."""
    digest: str
    """Digest of these tokens; equal first requests make a group."""


@dataclass(slots=True)
class _Worker:
    """A process of agent loops."""

    seen_at: float
    """Time in seconds of its newest call."""
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    ended: list[str] = field(default_factory=list)
    """Request ids whose wait is over and of which the worker does not know yet."""
    waits: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """{request id: its wait}."""
    given: set[str] = field(default_factory=set)
    """Request ids that have a server which the worker has not fetched."""


class PlaceDesk:
    """Keeps the waits of agent loops, so that a waiting turn takes none of the calls that a Ray actor runs at once.

    A worker leaves its requests by `ask`, learns by `ended_waits`, one call for all its turns, which waits are over,
    and then fetches each server by `claim`. If a worker dies, `drop_silent` gives back what it waited for or was given.
    """

    def __init__(
        self,
        acquire: Callable[[PlaceRequest], Awaitable[str]],
        give_back: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            acquire: Waits for the server of a turn; cancelling it withdraws the request.
            give_back: Ends a conversation whose worker has died, also while it waits.
            clock: Returns the time in seconds.
        """
        self._acquire = acquire
        self._give_back = give_back
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._given: dict[str, tuple[str, _Worker]] = {}
        """{request id: the server that it was given, and its worker}, until it is fetched."""

    def ask(self, worker: str, requests: Sequence[PlaceRequest]) -> None:
        """Begin to wait for the servers of turns."""
        asking = self._seen(worker)
        for request in requests:
            if request["request_id"] not in asking.waits:
                asking.waits[request["request_id"]] = asyncio.create_task(self._wait(asking, request))

    async def ended_waits(self, worker: str) -> list[str] | None:
        """The worker's requests whose wait is over, by a server or by an error, as soon as there are any.

        Returns none of them after some seconds, so that a worker which no longer asks is known to have died. Returns
        None to a worker that counted as dead: no request of it waits any more.
        """
        if worker not in self._workers:
            return None
        asking = self._seen(worker)
        try:
            await asyncio.wait_for(asking.has_news.wait(), _POLL_SECONDS)
        except TimeoutError:
            return []
        asking.has_news.clear()
        ended, asking.ended = asking.ended, []
        self._seen(worker)
        return ended

    def claim(self, request_id: str) -> str | None:
        """The server that a turn was given; None if it has none, or has fetched it already."""
        if request_id not in self._given:
            return None
        server, worker = self._given.pop(request_id)
        worker.given.discard(request_id)
        return server

    def drop_silent(self) -> int:
        """Give back everything of workers that have not called for a minute; returns the number of their turns."""
        silent = [name for name, each in self._workers.items() if self._clock() - each.seen_at > _SILENT_SECONDS]
        num_turns = 0
        for worker in map(self._workers.pop, silent):
            num_turns += len(worker.waits) + len(worker.given)
            for request_id, wait in worker.waits.items():
                self._give_back(request_id)
                wait.cancel()
            for request_id in worker.given:
                del self._given[request_id]
                self._give_back(request_id)
        return num_turns

    def _seen(self, name: str) -> _Worker:
        worker = self._workers.setdefault(name, _Worker(self._clock()))
        worker.seen_at = self._clock()
        return worker

    async def _wait(self, worker: _Worker, request: PlaceRequest) -> None:
        name = request["request_id"]
        try:
            self._given[name] = (await self._acquire(request), worker)
            worker.given.add(name)
        except (RuntimeError, EngineError):
            pass  # the worker's `acquire_server` meets the same error, and reports it
        finally:
            del worker.waits[name]
        worker.ended.append(name)
        worker.has_news.set()
