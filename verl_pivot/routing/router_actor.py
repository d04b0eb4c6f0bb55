"""KvRouter, the Ray actor that verl starts for `rollout.router_config_path`: a Router that polls its engines' loads."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import aiohttp
import ray

from verl_pivot.data.rollout_records import RoutingCost
from verl_pivot.errors import EngineError
from verl_pivot.routing.client import digest_of, is_only_turn, reports_end
from verl_pivot.routing.engine_load import EngineLoad, read_load
from verl_pivot.routing.gauges import RouterGauges
from verl_pivot.routing.place_desk import PlaceDesk, PlaceRequest
from verl_pivot.routing.router import Router
from verl_pivot.routing.router_state import RouterStatus, TokenAccount
from verl_pivot.routing.settings import make_routing_policy, parse_router

logger = logging.getLogger(__name__)
_GOLDEN_SECTION = 0.618
"""Shares of a period between two servers' polls: its multiples spread any number of servers evenly."""
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
"""Timeout of one read of an engine's load."""


# Far above the rollouts in flight: acquires of verl's own agent loops wait inside the call and must not block releases.
@ray.remote(max_concurrency=60_000)
class KvRouter:
    """verl's `RequestLoadBalancer`, with the routing policy that the YAML names.

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
        self._desk = PlaceDesk(self._acquire, lambda name: self._router.end(name, None), time.monotonic)
        self._handles: dict[str, Any] = {}
        self._first_servers = dict(servers)
        self._started: asyncio.Task[None] | None = None
        self._pollers: dict[str, asyncio.Task[None]] = {}
        self._gauges = RouterGauges()

    # ---- what verl's clients call

    async def require_acquire_fields(self) -> list[str]:
        return ["prompt_ids"]

    async def require_release_fields(self) -> list[str]:
        return ["request_id"]

    async def acquire_server(self, request_id: str, prompt_ids: list[int]) -> tuple[str, Any]:
        """The server for one turn and the handle of its actor; waits until there is room, unless a place was requested.

        Raises:
            RuntimeError: If there is no server, with verl's text.
            EngineError: If the request is larger than every server's KV cache.
        """
        await self._start()
        given = self._desk.claim(request_id)
        if given is not None and given in self._handles and self._router.is_running(request_id, given):
            return given, self._handles[given]
        request = PlaceRequest(request_id=request_id, num_tokens=len(prompt_ids), digest=digest_of(prompt_ids))
        prompt_ids.clear()  # Ray keeps the arguments of a call until it returns, and this one may wait for minutes
        while True:
            server = await self._acquire(request)
            if server in self._handles:
                return server, self._handles[server]

    async def request_places(self, worker: str, requests: Sequence[PlaceRequest]) -> None:
        """Not in verl's protocol: begin to wait for the servers of turns, see `routing.client`."""
        await self._start()
        self._desk.ask(worker, requests)

    async def ended_waits(self, worker: str) -> list[str] | None:
        """Not in verl's protocol: the worker's requests whose wait is over, see `routing.place_desk`."""
        return await self._desk.ended_waits(worker)

    async def release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._router.release(server_id, request_id)

    async def end_conversation(
        self, request_id: str, response_tokens: int | None, global_step: int | None
    ) -> RoutingCost:
        """Not in verl's protocol: end a conversation, see `routing.client`."""
        self._desk.claim(request_id)
        return self._router.end(request_id, response_tokens, global_step)

    # ---- what verl's trainers call

    async def add_servers(self, servers: Mapping[str, Any]) -> None:
        await self._start()
        await self._add(servers)

    async def remove_servers(self, server_ids: Sequence[str]) -> None:
        await self._start()
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
        return self._router.status()

    async def audit(self) -> dict[str, TokenAccount]:
        """Not in verl's protocol: {server: its KV tokens}, recounted.

        Raises:
            AssertionError: If the accounts do not balance.
        """
        return self._router.audit()

    async def clear_sticky_cache(self) -> dict[str, object]:
        return {"cleared_entries": self._router.forget_prefixes(), "server_loads": self._router.inflight}

    async def _acquire(self, request: PlaceRequest) -> str:
        name = request["request_id"]
        return await self._router.acquire(
            name,
            request["num_tokens"],
            request["digest"],
            reports_end=reports_end(name),
            is_only_turn=is_only_turn(name),
        )

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
        for (server, handle), load in zip(servers.items(), loads, strict=True):
            if poller := self._pollers.pop(server, None):
                poller.cancel()
            self._handles[server] = handle
            self._router.add_server(server, load)
            share = len(self._pollers) * _GOLDEN_SECTION % 1.0
            self._pollers[server] = _background_task(self._poll(server, share))

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


def _background_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that nobody awaits; if it ends by an error, the error is logged."""
    task = asyncio.create_task(work)
    task.add_done_callback(_log_error)
    return task


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a background task of the router failed; the router continues without it", exc_info=error)
