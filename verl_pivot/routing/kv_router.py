"""verl's router actor (`rollout.router_config_path`) over routing.router: its protocol, and what engines say."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import aiohttp
import ray

from verl_pivot.errors import EngineError
from verl_pivot.routing.accounts import Journey
from verl_pivot.routing.engine_load import EngineLoad, read_load
from verl_pivot.routing.request_ids import tells_end
from verl_pivot.routing.router import Router
from verl_pivot.routing.router_gauges import RouterGauges
from verl_pivot.routing.settings import make_policy, parse_router

logger = logging.getLogger(__name__)
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
"""Of one question to an engine."""


@ray.remote(max_concurrency=60_000)  # far above the rollouts in flight: those that wait must not keep releases out
class KvRouter:
    """Schedules by the policy of its YAML; every method is one of verl's `RequestLoadBalancer`, or says so."""

    def __init__(self, servers: Mapping[str, Any], yaml_config: Mapping[str, Any]) -> None:
        """
        Args:
            servers: {host:port of an engine's HTTP server: its actor}.
            yaml_config: The YAML's content, see configs/router/.

        Raises:
            ConfigError: If a key is unknown or its value wrong.
        """
        self._settings = parse_router(dict(yaml_config), "router YAML")
        self._router = Router(
            make_policy(self._settings), time.monotonic, forget_after_seconds=self._settings.forget_after_seconds
        )
        self._handles: dict[str, Any] = {}
        self._first = dict(servers)
        self._begun: asyncio.Task[None] | None = None
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._gauges = RouterGauges()

    # ---- what verl's clients call

    async def require_acquire_fields(self) -> list[str]:
        return ["prompt_ids"]

    async def require_release_fields(self) -> list[str]:
        return ["request_id"]

    async def acquire_server(self, request_id: str, prompt_ids: Sequence[int]) -> tuple[str, Any]:
        """A server for one turn; waits until there is room.

        Raises:
            RuntimeError: If there is no server, with verl's text.
            EngineError: If no server could ever hold it.
        """
        await self._begin()
        while True:
            server = await self._router.acquire(request_id, prompt_ids, tells_end=tells_end(request_id))
            if server in self._handles:
                return server, self._handles[server]

    async def release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._router.release(server_id, request_id)

    async def end_conversation(self, request_id: str, response_tokens: int, global_step: int | None) -> Journey:
        """Ours: what agent loops tell whose ids say that they do (`rollout.router_client`)."""
        return self._router.end(request_id, response_tokens, global_step)

    # ---- what verl's trainers call

    async def add_servers(self, servers: Mapping[str, Any]) -> None:
        await self._begin()
        await self._add(servers)

    async def remove_servers(self, server_ids: Sequence[str]) -> None:
        await self._begin()
        for server in server_ids:
            self._handles.pop(server, None)
            if watcher := self._watchers.pop(server, None):
                watcher.cancel()
            self._router.remove_server(server)

    async def get_all_servers(self) -> list[str]:
        await self._begin()
        return self._router.servers

    async def get_inflight_count(self, server_id: str) -> int:
        return self._router.inflight.get(server_id, 0)

    async def get_total_inflight(self) -> int:
        return sum(self._router.inflight.values())

    async def get_status(self) -> dict[str, object]:
        await self._begin()
        return self._router.status()

    async def audit(self) -> dict[str, dict[str, int | None]]:
        """Ours: committed, free and capacity of each server, recounted.

        Raises:
            AssertionError: If the accounts do not balance.
        """
        return self._router.audit()

    async def clear_sticky_cache(self) -> dict[str, object]:
        return {"cleared_entries": self._router.forget_prefixes(), "server_loads": self._router.inflight}

    # ---- what engines say

    async def _begin(self) -> None:
        """The first servers are asked for their capacity before anything is scheduled."""
        if self._begun is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, connector=aiohttp.TCPConnector(limit=0))
            self._begun = asyncio.create_task(self._add(self._first))
            self._housekeeper = _told_if_broken(self._keep_house())
        await asyncio.shield(self._begun)

    async def _add(self, servers: Mapping[str, Any]) -> None:
        loads = await asyncio.gather(*(self._ask(server) for server in servers))
        for (server, handle), load in zip(servers.items(), loads, strict=True):
            if watcher := self._watchers.pop(server, None):
                watcher.cancel()
            self._handles[server] = handle
            self._router.add_server(server, load)
            self._watchers[server] = _told_if_broken(self._watch(server))

    async def _watch(self, server: str) -> None:
        """Each server has a rhythm of its own, so that hundreds are not asked at once."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            self._router.observe(server, await self._ask(server))

    async def _ask(self, server: str) -> EngineLoad | None:
        try:
            return await read_load(self._session, server)
        except EngineError as error:
            logger.warning("%s; it is scheduled by its former capacity, and left out after some silence", error)
            return None

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            self._router.tick()
            self._gauges.set(self._router.status())


def _told_if_broken(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that nobody awaits; should it ever end by an error, the log has it."""
    task = asyncio.create_task(work)
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the router does not watch its engines any more, and schedules on", exc_info=error)
