"""KvRouter, which verl starts for `rollout.router_config_path`: an actor with a Router that polls engines' loads."""

import asyncio
import logging
import math
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
from verl_pivot.routing.router_messages import RouterNews, Taken, decode_messages, encode
from verl_pivot.routing.router_state import RouterStatus, TokenAccount, merged
from verl_pivot.routing.settings import RouterSettings, make_routing_policy, parse_router
from verl_pivot.routing.shards import Demand, plan_exchange, split

logger = logging.getLogger(__name__)
_GOLDEN_SECTION = 0.618
"""Shares of a period between two servers' polls: its multiples spread any number of servers evenly."""
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
"""Timeout of one read of an engine's load."""


# Each process of agent loops has two calls at most under way: one with its messages, and one that waits for news.
@ray.remote(max_concurrency=20_000)
class RouterActor:
    """The router of one shard of the engines, to which RouterHandle sends messages; the first one speaks for all.

    Every public method belongs to verl's protocol, unless its docstring begins with "Not in verl's protocol".
    """

    def __init__(self, servers: Mapping[str, Any], settings: RouterSettings, others: Sequence[Any] = ()) -> None:
        """
        Args:
            servers: {host:port of an engine's HTTP server: handle of its actor} of the shard.
            settings: Settings for the shard.
            others: Handles of the actors of all other shards, for the first one.
        """
        self._settings = settings
        self._others = others
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
        costs = self._desk.take(worker, decode_messages(messages))
        return encode(Taken(costs, RouterNews(self._handles_version, self._desk.known_answers(worker))))

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

    # ---- what the first shard's actor calls

    async def get_demand(self) -> Demand:
        """Not in verl's protocol: what the shard has to do."""
        await self._start()
        num_waiting = self._router.num_waiting_to_begin + self._desk.num_first_turns
        return Demand(num_waiting, self._router.num_active_servers)

    async def pass_on(self, most: int, shard: int) -> None:
        """Not in verl's protocol: let up to `most` waiting conversations begin on another shard."""
        self._router.pass_on(most, shard)

    # ---- what verl's trainers call

    async def add_servers(self, servers: Mapping[str, Any]) -> None:
        await self._start()
        shards = await self._servers_by_shard()
        added: list[dict[str, Any]] = [{} for _ in shards]
        for server, handle in servers.items():
            known = [shard for shard, names in enumerate(shards) if server in names]
            smallest = min(range(len(shards)), key=lambda shard: len(shards[shard]) + len(added[shard]))
            added[known[0] if known else smallest][server] = handle
        await self._add(added[0])
        for other, new in zip(self._others, added[1:], strict=True):
            await other.add_servers.remote(new)

    async def remove_servers(self, server_ids: Sequence[str]) -> None:
        await self._start()
        of_others = [set(names) for names in (await self._servers_by_shard())[1:]]
        self._change_handles()
        for server in server_ids:
            if any(server in names for names in of_others):
                continue
            self._handles.pop(server, None)
            if poller := self._pollers.pop(server, None):
                poller.cancel()
            self._router.remove_server(server)
        for other, names in zip(self._others, of_others, strict=True):
            await other.remove_servers.remote(list(names.intersection(server_ids)))

    async def _servers_by_shard(self) -> list[list[str]]:
        return [self._router.servers, *await self._ask_others("get_all_servers")]

    async def get_all_servers(self) -> list[str]:
        await self._start()
        return [server for names in await self._servers_by_shard() for server in names]

    async def get_inflight_count(self, server_id: str) -> int:
        return sum([self._router.inflight.get(server_id, 0), *await self._ask_others("get_inflight_count", server_id)])

    async def get_total_inflight(self) -> int:
        return sum([*self._router.inflight.values(), *await self._ask_others("get_total_inflight")])

    async def get_status(self) -> RouterStatus:
        await self._start()
        status = self._router.status()
        own: RouterStatus = {**status, "waiting": status["waiting"] + self._desk.num_first_turns}
        return merged([own, *await self._ask_others("get_status")])

    async def audit(self) -> dict[str, TokenAccount]:
        """Not in verl's protocol: {server: its KV tokens}, recounted.

        Raises:
            AssertionError: If the accounts do not balance.
        """
        accounts = self._router.audit()
        for each in await self._ask_others("audit"):
            accounts |= each
        return accounts

    async def clear_sticky_cache(self) -> dict[str, Any]:
        cleared, loads = self._router.forget_prefixes(), self._router.inflight
        for each in await self._ask_others("clear_sticky_cache"):
            cleared, loads = cleared + each["cleared_entries"], loads | each["server_loads"]
        return {"cleared_entries": cleared, "server_loads": loads}

    async def _ask_others(self, method: str, *arguments: object) -> list[Any]:
        """[num_others] what a method of the other shards' actors returns."""
        return list(await asyncio.gather(*(getattr(each, method).remote(*arguments) for each in self._others)))

    # ---- engines

    async def _start(self) -> None:
        """Read the loads of the first servers and start polling; calls that need servers await this."""
        if self._started is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, connector=aiohttp.TCPConnector(limit=0))
            self._started = asyncio.create_task(self._add(self._first_servers))
            self._refresher = _background_task(self._refresh())
            if self._others:
                self._exchanger = _background_task(self._exchange())
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

    async def _exchange(self) -> None:
        """Let waiting conversations begin on shards where none waits, every `poll_seconds`."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            demands = [await self.get_demand(), *await self._ask_others("get_demand")]
            for source, target, number in plan_exchange(demands):
                if source == 0:
                    self._router.pass_on(number, target)
                else:
                    await self._others[source - 1].pass_on.remote(number, target)


class _RouterClass(ray.actor.ActorClass):  # type: ignore[misc]  # generic in Ray, and final for its checker
    """An actor class as verl knows it, which gives verl a RouterHandle in place of Ray's handle of the actor."""

    def __init__(self) -> None:
        """Without Ray's, which refuses to be called."""

    def remote(self, servers: Mapping[str, Any], yaml_config: Mapping[str, Any]) -> RouterHandle:
        """Start the actors of the router.

        Args:
            servers: {host:port of an engine's HTTP server: handle of its actor}.
            yaml_config: Content of the YAML, see configs/router/.

        Raises:
            ConfigError: If a key is unknown or its value wrong.
        """
        settings = parse_router(dict(yaml_config), "router YAML")
        shards = split(list(servers), max(1, math.ceil(len(servers) / settings.engines_per_shard)))
        settings = settings.for_shard(len(shards))
        first, *others = ({server: servers[server] for server in shard} for shard in shards)
        actor: Any = RouterActor
        others = [actor.remote(each, settings) for each in others]
        handle = RouterHandle(actor.remote(first, settings, others), others)
        if others:
            handle.get_all_servers.remote()  # else the first actor exchanges nothing until a conversation begins there
        return handle


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
