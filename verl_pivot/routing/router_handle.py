"""RouterHandle, which verl's clients hold: calls about single requests -> calls of the router's actors about many."""

import asyncio
import itertools
import os
from array import array
from collections.abc import Callable, Coroutine, Sequence
from hashlib import blake2b
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.errors import EngineError
from verl_pivot.routing.client import reports_end
from verl_pivot.routing.router import NO_SERVERS
from verl_pivot.routing.router_messages import (
    Answer,
    ConversationOver,
    Message,
    RouterNews,
    TurnAsked,
    TurnOver,
    TurnPassed,
    TurnRefused,
    decode_news,
    decode_taken,
    encode,
)
from verl_pivot.routing.shards import ConversationShards

_MOST_MESSAGES = 32
"""Messages in one call of the actor, so that no call keeps it busy for long."""
_Wait = asyncio.Future[Answer | None]
"""Wait for the answer to a question; None if the router has forgotten the question."""


class RouterHandle:
    """Stands for the router's actors in verl's client and trainers.

    A call about one request is a message in a call that carries many, and a process waits for the servers of all its
    turns by one call of each actor. The token ids of a request stay in its process: their number and digest travel.
    Every other method, such as `add_servers` and `get_status`, is that of the first actor, which asks the others.
    """

    def __init__(self, actor: Any, others: Sequence[Any] = ()) -> None:
        """
        Args:
            actor: Ray's handle of the RouterActor of the first shard, see `routing.shards`.
            others: Those of the other shards.
        """
        self.actors = (actor, *others)
        self._calls_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _ProcessCalls] = WeakKeyDictionary()
        self.require_acquire_fields = _LocalMethod(self._acquire_fields)
        self.require_release_fields = _LocalMethod(self._release_fields)
        self.acquire_server = _LocalMethod(self._acquire)
        self.release_server = _LocalMethod(self._release)
        self.end_conversation = _LocalMethod(self._end)

    def __reduce__(self) -> tuple[type["RouterHandle"], tuple[Any, tuple[Any, ...]]]:
        return RouterHandle, (self.actors[0], self.actors[1:])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.actors[0], name)

    async def _acquire_fields(self) -> list[str]:
        return ["prompt_ids"]

    async def _release_fields(self) -> list[str]:
        return ["request_id"]

    async def _acquire(self, request_id: str, prompt_ids: Sequence[int]) -> tuple[str, Any]:
        """The server for one turn and the handle of its actor; waits until there is room.

        Raises:
            RuntimeError: If there is no server, with verl's text.
            EngineError: If the request is larger than every server's KV cache.
        """
        return await self._calls.acquire(request_id, len(prompt_ids), digest_of(prompt_ids))

    def _release(self, server_id: str, request_id: str | None = None) -> None:
        self._calls.release(TurnOver(server_id, request_id))

    async def _end(self, request_id: str, response_tokens: int | None, global_step: int | None) -> RoutingCost:
        """End a conversation, see `routing.client`."""
        return await self._calls.end(ConversationOver(request_id, response_tokens, global_step))

    @property
    def _calls(self) -> "_ProcessCalls":
        loop = asyncio.get_running_loop()
        if loop not in self._calls_by_loop:
            self._calls_by_loop[loop] = _ProcessCalls(self.actors)
        return self._calls_by_loop[loop]


class _LocalMethod:
    """A method that runs in the caller's process, called like that of an actor's handle."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


def digest_of(token_ids: Sequence[int]) -> str:
    """Digest of the tokens of a request."""
    return blake2b(array("q", token_ids), digest_size=16).hexdigest()


class _ProcessCalls:
    """Calls of the actors by a process of agent loops, each about a conversation of that actor's shard."""

    def __init__(self, actors: Sequence[Any]) -> None:
        """`actors` are Ray's handles, one for each shard."""
        self._calls = [_ShardCalls(actor) for actor in actors]
        self._shards = ConversationShards(len(actors), os.getpid() % len(actors))

    async def acquire(self, request_id: str, num_tokens: int, digest: str) -> tuple[str, Any]:
        """The server for one turn, and the handle of its actor; a cancelled wait ends what nobody else will end."""
        shard = self._shards.find(request_id)
        if shard is None:
            shard = self._shards.begin(request_id, digest)
        refusing: set[int] = set()
        waited_ms = 0
        try:
            while True:
                found = await self._calls[shard].acquire(request_id, num_tokens, digest, waited_ms)
                if isinstance(found, TurnPassed):
                    shard, waited_ms = found.shard, found.waited_ms
                elif isinstance(found, TurnRefused):
                    refusing.add(shard)
                    shard = self._after_refusal(found, refusing)
                else:
                    return found
                self._shards.move(request_id, shard)
        except asyncio.CancelledError:
            if not reports_end(request_id):
                self._calls[self._shards.end(request_id)].send(ConversationOver(request_id, None, None))
            raise

    def release(self, over: TurnOver) -> None:
        """Report that a turn has ended."""
        shard = None if over.request_id is None else self._shards.find(over.request_id)
        self._calls[shard or 0].send(over)

    async def end(self, over: ConversationOver) -> RoutingCost:
        """End a conversation; returns what routing cost it."""
        return await self._calls[self._shards.end(over.request_id)].end(over)

    def _after_refusal(self, refused: TurnRefused, refusing: set[int]) -> int:
        """The shard to ask next. Raises the error of the refusal if no other one can help."""
        others = [shard for shard in range(len(self._calls)) if shard not in refusing]
        if others and (refused.is_engine_error or refused.reason == NO_SERVERS):
            return others[0]
        raise EngineError(refused.reason) if refused.is_engine_error else RuntimeError(refused.reason)


class _ShardCalls:
    """Calls of one actor by a process of agent loops: one at a time with its messages, and one that waits for news."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._worker = uuid4().hex
        self._numbers = itertools.count()
        self._questions: dict[int, tuple[str, _Wait]] = {}
        """{number: (conversation, wait for the answer)} of the turns that wait."""
        self._outbox: list[Message] = []
        self._costs: list[asyncio.Future[RoutingCost] | None] = []
        """Costs that are still to come, in the order of the conversations' ends; None where nobody asks for them."""
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._servers_version = 0
        self._handles: asyncio.Task[dict[str, Any]] | None = None
        """Handles of the servers under `_servers_version`; None until they are needed."""

    async def acquire(
        self, request_id: str, num_tokens: int, digest: str, waited_ms: int
    ) -> tuple[str, Any] | TurnPassed | TurnRefused:
        """The server for one turn and the handle of its actor, or why there is none."""
        while True:
            number = next(self._numbers)
            answer = await self._ask(TurnAsked(number, request_id, num_tokens, digest, waited_ms))
            if isinstance(answer, TurnPassed | TurnRefused):
                return answer
            if answer is not None and answer.server in (handles := await self._current_handles()):
                return answer.server, handles[answer.server]

    async def end(self, over: ConversationOver) -> RoutingCost:
        """End a conversation; returns what routing cost it."""
        cost: asyncio.Future[RoutingCost] = asyncio.get_running_loop().create_future()
        self.send(over, cost)
        return await cost

    def send(self, message: Message, cost: "asyncio.Future[RoutingCost] | None" = None) -> None:
        """Send a message with the next call; `cost` becomes the cost of the conversation that it ends."""
        self._outbox.append(message)
        if isinstance(message, ConversationOver):
            self._costs.append(cost)
        if self._sender is None:
            self._sender = self._task(self._send())

    async def _ask(self, asked: TurnAsked) -> Answer | None:
        """The answer to one question; None if the router took this process for dead and has forgotten the question."""
        answer: _Wait = asyncio.get_running_loop().create_future()
        self._questions[asked.number] = asked.request_id, answer
        self.send(asked)
        try:
            return await answer
        finally:
            self._questions.pop(asked.number, None)

    async def _current_handles(self) -> dict[str, Any]:
        """{server: handle of its actor}, fetched once for each version of the servers."""
        if self._handles is None:
            self._handles = asyncio.create_task(self._fetch_handles())
        return await asyncio.shield(self._handles)

    async def _fetch_handles(self) -> dict[str, Any]:
        (reference,) = await self._actor.get_handles.remote()
        handles: dict[str, Any] = await reference
        return handles

    async def _send(self) -> None:
        """Send all messages; those that come during a call go with the next one."""
        try:
            while self._outbox:
                messages, self._outbox = self._outbox[:_MOST_MESSAGES], self._outbox[_MOST_MESSAGES:]
                taken = decode_taken(await self._actor.take_messages.remote(self._worker, encode(messages)))
                for found in taken.costs:
                    cost = self._costs.pop(0)
                    if cost is not None and not cost.done():
                        cost.set_result(found)
                self._read(taken.news)
                asked = (each.number for each in messages if isinstance(each, TurnAsked))
                if self._listener is None and not self._questions.keys().isdisjoint(asked):
                    self._listener = self._task(self._listen())
        finally:
            self._sender = None

    async def _listen(self) -> None:
        """Learn the answers to questions until no turn waits."""
        try:
            while self._questions:
                news = decode_news(await self._actor.wait_for_news.remote(self._worker))
                if news is None:
                    self._ask_again()
                else:
                    self._read(news)
            self._actor.leave.remote(self._worker)
        finally:
            self._listener = None

    def _read(self, news: RouterNews) -> None:
        if news.servers_version != self._servers_version:
            self._servers_version, self._handles = news.servers_version, None
        for answer in news.answers:
            _, future = self._questions.pop(answer.number, (None, None))
            if future is not None and not future.done():
                future.set_result(answer)

    def _ask_again(self) -> None:
        """Let every turn ask again, as new conversations: the router has ended all that waited."""
        for request_id in {request_id for request_id, _ in self._questions.values()}:
            self.send(ConversationOver(request_id, None, None))
        for _, answer in self._questions.values():
            if not answer.done():
                answer.set_result(None)
        self._questions.clear()

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        task.add_done_callback(self._fail_all)
        return task

    def _fail_all(self, task: "asyncio.Task[None]") -> None:
        """Let everything that waits end as a call did: with its error, or cancelled where the event loop closes."""
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        waiting: list[asyncio.Future[Any]] = [answer for _, answer in self._questions.values()]
        waiting += [cost for cost in self._costs if cost is not None]
        self._outbox, self._costs = [], []
        for future in waiting:
            if error is None:
                future.cancel()
            elif not future.done():
                future.set_exception(error)
