"""What our agent loops ask of the router and report to it, through verl's client: a place for a turn, and the end."""

import asyncio
from array import array
from collections.abc import Coroutine, Sequence
from hashlib import blake2b
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.routing.place_desk import PlaceRequest

REPORTS_END = "+reports-end"
"""Ending of the request ids of conversations whose agent loop calls `end_conversation`."""


_ONLY_TURN = "+only-turn"
"""Part of the request ids of conversations that have one turn."""


def new_request_id(*, is_only_turn: bool = False) -> str:
    """A new request id for all turns of one conversation, whose agent loop must call `end_conversation` when it ends.

    For other routers than ours it is a request id like any other.

    Args:
        is_only_turn: Whether the conversation has one turn, so that the router need not keep its KV cache for others.
    """
    return uuid4().hex + (_ONLY_TURN if is_only_turn else "") + REPORTS_END


def is_only_turn(request_id: str) -> bool:
    """Whether the agent loop of this conversation has said that it has one turn."""
    return request_id.endswith(_ONLY_TURN + REPORTS_END)


def reports_end(request_id: str) -> bool:
    """Whether the agent loop of this conversation will call `end_conversation`; verl's own loops do not."""
    return request_id.endswith(REPORTS_END)


def digest_of(token_ids: Sequence[int]) -> str:
    """Digest of the tokens of a request."""
    return blake2b(array("q", token_ids), digest_size=16).hexdigest()


async def wait_for_place(client: Any, request_id: str, token_ids: Sequence[int]) -> None:
    """Wait until the router has a server for a turn, or refuses it; verl's client then fetches the server at once.

    Where the wait is inside the call of verl's client, it takes one of the calls that the router's actor runs at once,
    and the actor keeps the tokens meanwhile. Other routers than ours are not asked.

    Args:
        client: verl's `LLMServerClient`, which holds the handle of the router's actor.
        request_id: Id of the conversation, from `new_request_id`.
        token_ids: Prompt and response so far.
    """
    router = getattr(client, "_load_balancer", None)
    if getattr(router, "request_places", None) is None:
        return
    waits = _waits.setdefault(client, _PlaceWaits(router))
    await waits.wait(PlaceRequest(request_id=request_id, num_tokens=len(token_ids), digest=digest_of(token_ids)))


class _PlaceWaits:
    """The turns of one worker that wait for a server: one call of the router's actor waits for all of them."""

    def __init__(self, router: Any) -> None:
        self._router = router
        self._worker = uuid4().hex
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._unsent: list[PlaceRequest] = []
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    async def wait(self, request: PlaceRequest) -> None:
        """Wait until the router says that the wait of a turn is over."""
        over = self._waiting[request["request_id"]] = asyncio.get_running_loop().create_future()
        self._unsent.append(request)
        if self._sender is None:
            self._sender = self._task(self._send())
        try:
            await over
        finally:
            self._waiting.pop(request["request_id"], None)

    async def _send(self) -> None:
        """Send all requests that have come together, and listen for their answers."""
        try:
            while self._unsent:
                requests, self._unsent = self._unsent, []
                await self._router.request_places.remote(self._worker, requests)
        finally:
            self._sender = None
        if self._listener is None and self._waiting:
            self._listener = self._task(self._listen())

    async def _listen(self) -> None:
        """Ask for the ends of waits until no turn waits."""
        try:
            while self._waiting:
                ended: list[str] | None = await self._router.ended_waits.remote(self._worker)
                for name in list(self._waiting) if ended is None else ended:
                    if (over := self._waiting.get(name)) is not None and not over.done():
                        over.set_result(None)
                await asyncio.sleep(0)  # those whose wait is over leave `_waiting`
        finally:
            self._listener = None

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        task.add_done_callback(self._fail_all)
        return task

    def _fail_all(self, task: "asyncio.Task[None]") -> None:
        """Let every turn that waits fail with the error of a call, such as that of an actor that has died."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        for over in self._waiting.values():
            if not over.done():
                over.set_exception(error)


_waits: WeakKeyDictionary[Any, _PlaceWaits] = WeakKeyDictionary()
"""{verl's client: the turns that wait for its router}."""


async def end_conversation(
    client: Any, request_id: str, response_tokens: int | None, global_step: int | None
) -> RoutingCost | None:
    """Report that a conversation has ended, which frees its place on the engine.

    Args:
        client: verl's `LLMServerClient`, which holds the handle of the router's actor.
        request_id: Id of the conversation, from `new_request_id`.
        response_tokens: Length of the response, observations of tools included; None where the rollout failed.
        global_step: Training step of the newest weights that sampled any of the response; None if unknown.

    Returns:
        What routing cost the conversation; None if the router is not ours and so has no `end_conversation`.
    """
    router_method = getattr(getattr(client, "_load_balancer", None), "end_conversation", None)
    if router_method is None:
        return None
    cost: RoutingCost = await router_method.remote(request_id, response_tokens, global_step)
    return cost
