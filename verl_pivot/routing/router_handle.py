"""RouterHandle, which verl's clients hold: calls about one request -> calls of the router's actors that carry many."""

import asyncio
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.errors import EngineError
from verl_pivot.routing.client import reports_end
from verl_pivot.routing.router import NO_SERVERS
from verl_pivot.routing.router_calls import ActorLost, ShardCalls
from verl_pivot.routing.router_messages import ConversationOver, TurnOver, TurnPassed, TurnRefused
from verl_pivot.routing.shards import ConversationShards

_LOST = (
    "the router has died and Ray no longer restarts it, so rollouts cannot get an engine: {reason}; see Ray's "
    "logs of RouterActor for the cause, and resume from the last checkpoint"
)


class RouterHandle:
    """Stands for the router's actors in verl's client and trainers.

    A call about one request becomes a message, and many messages go to an actor in one call. A process waits for the
    servers of all its turns by one call of each actor. The token ids of a request stay in its process: only their
    number and digest are sent. Every other method, such as `add_servers` and `get_status`, is that of the first actor,
    which asks the others.
    """

    def __init__(self, actor: Any, others: Sequence[Any] = ()) -> None:
        """
        Args:
            actor: Ray's handle of the RouterActor of the first shard, see `routing.shards`.
            others: Ray's handles of the actors of the other shards.
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

    async def _end(self, request_id: str, response_tokens: int | None, global_step: int | None) -> RoutingCost | None:
        """End a conversation, see `routing.client`."""
        return await self._calls.end(ConversationOver(request_id, response_tokens, global_step))

    @property
    def _calls(self) -> "_ProcessCalls":
        loop = asyncio.get_running_loop()
        if loop not in self._calls_by_loop:
            self._calls_by_loop[loop] = _ProcessCalls(self.actors)
        return self._calls_by_loop[loop]


class _LocalMethod:
    """A method that runs in the caller's process, but is called like a method of a Ray actor."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


def digest_of(token_ids: Sequence[int]) -> str:
    """Digest of the tokens of a request."""
    return blake2b(array("q", token_ids), digest_size=16).hexdigest()


class _ProcessCalls:
    """Calls of the actors by a process of agent loops, each about a conversation of that actor's shard."""

    def __init__(self, actors: Sequence[Any]) -> None:
        """`actors` are Ray's handles, one for each shard."""
        self._calls = [ShardCalls(actor) for actor in actors]
        self._shards = ConversationShards(len(actors), os.getpid() % len(actors))

    async def acquire(self, request_id: str, num_tokens: int, digest: str) -> tuple[str, Any]:
        """The server for one turn, and the handle of its actor.

        If the wait is cancelled and the agent loop does not report ends, the conversation is ended here.
        """
        shard = self._shards.find(request_id)
        if shard is None:
            shard = self._shards.begin(request_id, digest, self._lost)
        refusals: dict[int, TurnRefused | ActorLost] = {}
        waited_ms = 0
        try:
            while True:
                found = await self._calls[shard].acquire(request_id, num_tokens, digest, waited_ms)
                if isinstance(found, TurnPassed):
                    shard, waited_ms = found.shard, found.waited_ms
                elif isinstance(found, TurnRefused | ActorLost):
                    refusals[shard] = found
                    shard = self._after_refusal(found, refusals)
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

    async def end(self, over: ConversationOver) -> RoutingCost | None:
        """End a conversation; returns its routing cost, or None if the actor that counted it has died."""
        return await self._calls[self._shards.end(over.request_id)].end(over)

    @property
    def _lost(self) -> set[int]:
        """Numbers of the shards whose actors have died."""
        return {shard for shard, calls in enumerate(self._calls) if calls.is_lost}

    def _after_refusal(self, refusal: TurnRefused | ActorLost, refusals: Mapping[int, TurnRefused | ActorLost]) -> int:
        """The shard to ask next. Raises the error of a refusal if no other shard can help."""
        may_differ = isinstance(refusal, ActorLost) or refusal.is_engine_error or refusal.reason == NO_SERVERS
        if may_differ and len(refusals) < len(self._calls):
            return self._shards.emptiest(without=refusals.keys())
        refused = [each for each in refusals.values() if isinstance(each, TurnRefused)]
        if not refused:
            raise EngineError(_LOST.format(reason=refusal.reason))
        raise EngineError(refused[-1].reason) if refused[-1].is_engine_error else RuntimeError(refused[-1].reason)
