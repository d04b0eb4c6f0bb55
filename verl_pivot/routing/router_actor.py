"""KvRouter, which verl starts for `rollout.router_config_path`: an actor with a Router that polls engines' loads."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import aiohttp
import ray

from verl_pivot.errors import EngineError
from verl_pivot.routing.engine_load import EngineLoad, read_load
from verl_pivot.routing.gauges import RouterGauges
from verl_pivot.routing.place_desk import PlaceDesk
from verl_pivot.routing.router import Router
from verl_pivot.routing.router_handle import RouterHandle
from verl_pivot.routing.router_messages import RouterNews, decode_messages, encode
from verl_pivot.routing.router_state import RouterStatus, TokenAccount
from verl_pivot.routing.settings import make_routing_policy, parse_router

logger = logging.getLogger(__name__)
_GOLDEN_SECTION = 0.618
"""Shares of a period between two servers' polls: its multiples spread any number of servers evenly."""
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
"""Timeout of one read of an engine's load."""


# Each process of agent loops has two calls at most under way: one with its messages, and one that waits for news.
@ray.remote(max_concurrency=20_000)
class RouterActor:
    """The router of a training, to which RouterHandle sends messages.

    Every public method belongs to verl's protocol, unless its docstring begins with "Not in verl's protocol".
    """

    def __init__(self, servers: Mapping[str, Any], yaml_config: Mapping[str, Any]) -> None:
        """
        Args:
            servers: {host:port of an engine's HTTP server: handle of its actor}.
            yaml_config: Content of the YAML, see configs/router/.

        Raises:
            ConfigError: If a key is unknown or its value wrong.
        """
        self._settings = parse_router(dict(yaml_config), "router YAML")
        self._router = Router(
            make_routing_policy(self._settings),
            time.monotonic,
            forget_after_seconds=self._settings.forget_after_seconds,
        )
        self._desk = PlaceDesk(self._router, time.monotonic)
        self._handles: dict[str, Any] = {}
        self._handles_version = 0
        """Number of changes of `_handles`."""
        self._shared_handles: ray.ObjectRef[dict[str, Any]] | None = None
        """`_handles` in Ray's object store, once anybody has asked for them."""
        self._first_servers = dict(servers)
        self._started: asyncio.Task[None] | None = None
        self._pollers: dict[str, asyncio.Task[None]] = {}
        self._gauges = RouterGauges()

    # ---- what RouterHandle calls

    async def take_messages(self, worker: str, messages: bytes) -> bytes:
        """Not in verl's protocol: take in a process's messages, see `routing.place_desk`."""
        await self._start()
        return encode(self._desk.take(worker, decode_messages(messages)))

    async def wait_for_news(self, worker: str) -> bytes:
        """Not in verl's protocol: answers to a process's questions, see `routing.place_desk`."""
        answers = await self._desk.answers(worker)
        return encode(None if answers is None else RouterNews(self._handles_version, answers))

    async def leave(self, worker: str) -> None:
        """Not in verl's protocol: take in that a process has all its answers."""
        self._desk.leave(worker)

    async def get_handles(self) -> "list[ray.ObjectRef[dict[str, Any]]]":
        """Not in verl's protocol: a reference to {server: handle of its actor}, in a list that Ray does not resolve."""
        if self._shared_handles is None:
            self._shared_handles = ray.put(self._handles)
        return [self._shared_handles]

    # ---- what verl's trainers call

    async def add_servers(self, servers: Mapping[str, Any]) -> None:
        await self._start()
        await self._add(servers)

    async def remove_servers(self, server_ids: Sequence[str]) -> None:
        await self._start()
        self._change_handles()
        for server in server_ids:
            self._handles.pop(server, None)
            if poller := self._pollers.pop(server, None):
                poller.cancel()
            self._router.remove_server(server)

    async def get_all_servers(self) -> list[str]:
        await self._start()
        return self._router.servers

    async def get_inflight_count(self, server_id: str) -> int:
        return self._router.inflight.get(server_id, 0)

    async def get_total_inflight(self) -> int:
        return sum(self._router.inflight.values())

    async def get_status(self) -> RouterStatus:
        await self._start()
        status = self._router.status()
        return {**status, "waiting": status["waiting"] + self._desk.num_first_turns}

    async def audit(self) -> dict[str, TokenAccount]:
        """Not in verl's protocol: {server: its KV tokens}, recounted.

        Raises:
            AssertionError: If the accounts do not balance.
        """
        return self._router.audit()

    async def clear_sticky_cache(self) -> dict[str, object]:
        return {"cleared_entries": self._router.forget_prefixes(), "server_loads": self._router.inflight}

    # ---- engines

    async def _start(self) -> None:
        """Read the loads of the first servers and start polling; calls that need servers await this."""
        if self._started is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, connector=aiohttp.TCPConnector(limit=0))
            self._started = asyncio.create_task(self._add(self._first_servers))
            self._refresher = _background_task(self._refresh())
        await asyncio.shield(self._started)

    async def _add(self, servers: Mapping[str, Any]) -> None:
        loads = await asyncio.gather(*(self._read_load(server) for server in servers))
        self._change_handles()
        for (server, handle), load in zip(servers.items(), loads, strict=True):
            if poller := self._pollers.pop(server, None):
                poller.cancel()
            self._handles[server] = handle
            self._router.add_server(server, load)
            share = len(self._pollers) * _GOLDEN_SECTION % 1.0
            self._pollers[server] = _background_task(self._poll(server, share))

    def _change_handles(self) -> None:
        """Begin a new version of the handles, which processes of agent loops must fetch."""
        self._handles_version += 1
        self._shared_handles = None

    async def _poll(self, server: str, share: float) -> None:
        """Poll one server, first after a share of `poll_seconds`, so that servers are read at different moments."""
        await asyncio.sleep(share * self._settings.poll_seconds)
        while True:
            self._router.observe(server, await self._read_load(server))
            await asyncio.sleep(self._settings.poll_seconds)

    async def _read_load(self, server: str) -> EngineLoad | None:
        try:
            return await read_load(self._session, server)
        except EngineError as error:
            logger.warning(
                "%s; the router keeps its last known capacity, and after 3 failures in a row sends it no more requests",
                error,
            )
            return None

    async def _refresh(self) -> None:
        """Forget conversations that are over and publish the gauges, every `poll_seconds`."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            self._router.tick()
            if num_turns := self._desk.drop_silent():
                logger.warning("gave back the places of %d turns, whose worker has not called for a minute", num_turns)
            self._gauges.set(self._router.status())


class _RouterClass(ray.actor.ActorClass):  # type: ignore[misc]  # generic in Ray, and final for its checker
    """An actor class as verl knows it, which gives verl a RouterHandle in place of Ray's handle of the actor."""

    def __init__(self) -> None:
        """Without Ray's, which refuses to be called."""

    def remote(self, servers: Mapping[str, Any], yaml_config: Mapping[str, Any]) -> RouterHandle:
        """Start the router, see RouterActor."""
        return RouterHandle(RouterActor.remote(servers, yaml_config))  # type: ignore[attr-defined]  # added by Ray


KvRouter = _RouterClass()
"""The `router_class` of a YAML."""


def _background_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that nobody awaits; if it ends by an error, the error is logged."""
    task = asyncio.create_task(work)
    task.add_done_callback(_log_error)
    return task


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a background task of the router failed; the router continues without it", exc_info=error)
