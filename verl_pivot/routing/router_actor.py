"""KvRouter, which verl starts for `rollout.router_config_path`: an actor with a Router that polls engines' loads."""

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import ray
from ray import cloudpickle
from ray.exceptions import ActorDiedError

from verl_pivot.errors import EngineError
from verl_pivot.routing.call_pace import CallPace
from verl_pivot.routing.engine_load import EngineLoad, poll_share, read_load
from verl_pivot.routing.gauges import RouterGauges
from verl_pivot.routing.place_desk import PlaceDesk
from verl_pivot.routing.router import Router
from verl_pivot.routing.router_handle import RouterHandle
from verl_pivot.routing.router_messages import Answer, RouterNews, Taken, decode_messages, encode
from verl_pivot.routing.router_state import RouterStatus, TokenAccount, merged
from verl_pivot.routing.server_memory import ServerMemory, remembered
from verl_pivot.routing.settings import RouterSettings, make_routing_policy, parse_router
from verl_pivot.routing.shards import NO_DEMAND, Demand, plan_exchange, split

logger = logging.getLogger(__name__)
MAX_RESTARTS = 10
"""Maximum number of times that Ray restarts an actor. One that dies each time must not keep a run waiting for ever."""
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
"""Timeout of one read of an engine's load."""


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _not_repeated(method: _Method) -> _Method:
    """A method that Ray does not call once more on a restarted actor, since RouterHandle must know that it died."""
    decorated: _Method = ray.method(max_task_retries=0)(method)
    return decorated


# Each process of agent loops has at most two calls under way: one with its messages, and one that waits for news.
# Ray's records of each call would take a tenth of the call's time.
@ray.remote(max_concurrency=20_000, max_restarts=MAX_RESTARTS, max_task_retries=MAX_RESTARTS, enable_task_events=False)
class RouterActor:
    """The router of one shard of the engines, to which RouterHandle sends messages; the first one answers for all.

    Every public method belongs to verl's protocol, unless its docstring begins with "Not in verl's protocol".
    """

    def __init__(self, memory: ServerMemory, settings: RouterSettings, others: bytes) -> None:
        """
        Args:
            memory: Memory of the servers of the shard: {host:port of an engine's HTTP server: handle of its actor}.
            settings: Settings for the shard.
            others: [num_others] handles of the actors of all other shards and memories of their servers, pickled; the
                list is empty for all actors but the first.
        """
        self._settings = settings
        every_other: list[tuple[Any, ServerMemory]] = cloudpickle.loads(others)
        self._others = dict(enumerate(every_other, start=1))
        """{number of the shard: (handle of its actor, memory of its servers)} of the other shards whose actors have not
        died for good."""
        self._num_shards = len(every_other) + 1
        self._actor_start = time.time_ns()
        self._router = Router(
            make_routing_policy(self._settings),
            time.monotonic,
            forget_after_seconds=self._settings.forget_after_seconds,
        )
        self._desk = PlaceDesk(self._router, time.monotonic)
        self._pace = CallPace()
        self._handles: dict[str, Any] = {}
        self._handles_version = self._actor_start
        """Version of `_handles`, which grows with each change. It begins with the start time of the actor, so that a
        restarted actor repeats no version."""
        self._shared_handles: ray.ObjectRef[dict[str, Any]] | None = None
        """`_handles` in Ray's object store; None until a process asks for them."""
        self._memory = memory
        if ray.get_runtime_context().was_current_actor_reconstructed:
            logger.warning("the router's actor died and was restarted; its rollouts are routed as new conversations")
        self._started: asyncio.Task[None] | None = None
        self._pollers: dict[str, asyncio.Task[None]] = {}
        self._gauges = RouterGauges()
        _collect_no_garbage_by_itself()

    # ---- what RouterHandle calls

    @_not_repeated
    async def take_messages(self, worker: str, messages: bytes) -> bytes:
        """Not in verl's protocol: take in a process's messages, see `routing.place_desk`."""
        await self._start()
        costs = await self._desk.take_many(worker, decode_messages(messages))
        return encode(Taken(costs, self._news(self._desk.known_answers(worker))))

    @_not_repeated
    async def wait_for_news(self, worker: str, actor_start: int) -> bytes:
        """Not in verl's protocol: answers to a process's questions, see `routing.place_desk`.

        Args:
            worker: Name of the process.
            actor_start: Start of the actor that it has asked, see RouterNews.
        """
        answers = None if actor_start != self._actor_start else await self._desk.answers(worker)
        return encode(None if answers is None else self._news(answers))

    def _news(self, answers: list[Answer]) -> RouterNews:
        return RouterNews(self._actor_start, self._handles_version, self._pace.period_ms, answers)

    @_not_repeated
    async def leave(self, worker: str) -> None:
        """Not in verl's protocol: note that a process has all its answers."""
        self._desk.leave(worker)

    @_not_repeated
    async def get_handles(self) -> "list[ray.ObjectRef[dict[str, Any]]]":
        """Not in verl's protocol: a reference to {server: handle of its actor}, in a list that Ray does not resolve."""
        if self._shared_handles is None:
            self._shared_handles = ray.put(self._handles)
        return [self._shared_handles]

    # ---- what the first shard's actor calls

    async def get_demand(self) -> Demand:
        """Not in verl's protocol: number of conversations that wait to begin, and of servers of the shard."""
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
        added: dict[int, dict[str, Any]] = {shard: {} for shard in shards}
        for server, handle in servers.items():
            known = [shard for shard, names in shards.items() if server in names]
            smallest = min(shards, key=lambda shard: len(shards[shard]) + len(added[shard]))
            added[known[0] if known else smallest][server] = handle
        await self._add(added.pop(0))
        for shard, new in added.items():
            await self._ask_other(shard, "add_servers", new)
            if shard not in self._others:
                await self.add_servers(new)

    async def remove_servers(self, server_ids: Sequence[str]) -> None:
        await self._start()
        of_others = await self._ask_others("get_all_servers")
        elsewhere = {server for names in of_others.values() for server in names}
        for server in server_ids:
            if server in elsewhere:
                continue
            self._handles.pop(server, None)
            if poller := self._pollers.pop(server, None):
                poller.cancel()
            self._router.remove_server(server)
        self._change_handles()
        for shard, names in of_others.items():
            await self._ask_other(shard, "remove_servers", [each for each in server_ids if each in names])

    async def _servers_by_shard(self) -> dict[int, list[str]]:
        return {0: self._router.servers, **await self._ask_others("get_all_servers")}

    async def get_all_servers(self) -> list[str]:
        await self._start()
        return [server for names in (await self._servers_by_shard()).values() for server in names]

    async def get_inflight_count(self, server_id: str) -> int:
        of_others = await self._ask_others("get_inflight_count", server_id)
        return sum([self._router.inflight.get(server_id, 0), *of_others.values()])

    async def get_total_inflight(self) -> int:
        return sum([*self._router.inflight.values(), *(await self._ask_others("get_total_inflight")).values()])

    async def get_status(self) -> RouterStatus:
        await self._start()
        status = self._router.status()
        own: RouterStatus = {**status, "waiting": status["waiting"] + self._desk.num_first_turns}
        return merged([own, *(await self._ask_others("get_status")).values()])

    async def audit(self) -> dict[str, TokenAccount]:
        """Not in verl's protocol: {server: its KV tokens}, recounted.

        Raises:
            AssertionError: If the accounts do not balance.
        """
        accounts = self._router.audit()
        for each in (await self._ask_others("audit")).values():
            accounts |= each
        return accounts

    async def clear_sticky_cache(self) -> dict[str, Any]:
        cleared, loads = self._router.forget_prefixes(), self._router.inflight
        for each in (await self._ask_others("clear_sticky_cache")).values():
            cleared, loads = cleared + each["cleared_entries"], loads | each["server_loads"]
        return {"cleared_entries": cleared, "server_loads": loads}

    async def _ask_others(self, method: str, *arguments: object) -> dict[int, Any]:
        """{shard: what a method of its actor returns} of the other shards whose actors have not died for good."""
        asked = list(self._others)
        found = await asyncio.gather(*(self._ask_other(shard, method, *arguments) for shard in asked))
        return {shard: answer for shard, answer in zip(asked, found, strict=True) if shard in self._others}

    async def _ask_other(self, shard: int, method: str, *arguments: object) -> Any:
        """What a method of another shard's actor returns; None if it has died for good."""
        if shard not in self._others:
            return None
        other, memory = self._others[shard]
        try:
            return await getattr(other, method).remote(*arguments)
        except ActorDiedError:
            if self._others.pop(shard, None) is not None:
                logger.exception(
                    "shard %d of the router died and is not restarted; its engines move to the other shards", shard
                )
                self._taken_over = _background_task(self._take_over(memory))
            return None

    async def _take_over(self, memory: ServerMemory) -> None:
        """Give the servers of a shard whose actor has died for good to the other shards."""
        known = await self.get_all_servers()
        servers = {server: handle for server, handle in memory.load().items() if server not in known}
        memory.save({})
        await self.add_servers(servers)

    # ---- engines

    async def _start(self) -> None:
        """Read the loads of the first servers and start polling; calls that need servers await this."""
        if self._started is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT, connector=aiohttp.TCPConnector(limit=0))
            self._started = asyncio.create_task(self._add(self._memory.load()))
            self._refresher = _background_task(self._refresh())
            if self._others:
                self._exchanger = _background_task(self._exchange())
        await asyncio.shield(self._started)

    async def _add(self, servers: Mapping[str, Any]) -> None:
        loads = await asyncio.gather(*(self._read_load(server) for server in servers))
        for (server, handle), load in zip(servers.items(), loads, strict=True):
            if poller := self._pollers.pop(server, None):
                poller.cancel()
            self._handles[server] = handle
            self._router.add_server(server, load)
            self._pollers[server] = _background_task(self._poll(server, poll_share(len(self._pollers))))
        self._change_handles()

    def _change_handles(self) -> None:
        """Begin a new version of the handles, which processes of agent loops must fetch."""
        self._handles_version += 1
        self._shared_handles = None
        self._memory.save(self._handles)

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
                "%s; the engine's last known capacity is used, and after 3 failures in a row it gets no more requests",
                error,
            )
            return None

    async def _refresh(self) -> None:
        """Forget conversations that are over, publish the gauges and choose the pace of calls, every `poll_seconds`."""
        while True:
            cpu, now = time.process_time(), time.monotonic()
            await asyncio.sleep(self._settings.poll_seconds)
            self._pace.observe(time.process_time() - cpu, time.monotonic() - now)
            self._router.tick()
            if num_turns := self._desk.drop_silent():
                logger.warning("released %d turns of agent-loop processes that have not called for a minute", num_turns)
            for _ in self._gauges.set(self._router.status()):
                await asyncio.sleep(0)
            if not self._router.conversations:
                gc.collect()

    async def _exchange(self) -> None:
        """Let waiting conversations begin on shards where none waits, every `poll_seconds`."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            demands = {0: await self.get_demand(), **await self._ask_others("get_demand")}
            of_all = [demands.get(shard, NO_DEMAND) for shard in range(self._num_shards)]
            for source, target, number in plan_exchange(of_all):
                if source == 0:
                    self._router.pass_on(number, target)
                else:
                    await self._ask_other(source, "pass_on", number, target)


def start_actor(
    servers: Mapping[str, Any],
    settings: RouterSettings,
    others: Sequence[tuple[Any, ServerMemory]] = (),
    **options: Any,
) -> tuple[Any, ServerMemory]:
    """Start the actor of a shard; returns its handle and the memory of its servers.

    Args:
        servers: {host:port of an engine's HTTP server: handle of its actor} of the shard.
        settings: Settings for the shard.
        others: Handles of the actors of all other shards and memories of their servers, for the first shard alone.
        options: Ray's options for the actor.
    """
    actor: Any = RouterActor
    memory = remembered(servers)
    return actor.options(**options).remote(memory, settings, cloudpickle.dumps(list(others))), memory


class _RouterClass(ray.actor.ActorClass):  # type: ignore[misc]  # generic in Ray, and final for its checker
    """An actor class that verl uses like one of Ray's, and that gives a RouterHandle instead of Ray's actor handle."""

    def __init__(self) -> None:
        """Do nothing: the method of Ray's class refuses to be called."""

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
        first, *rest = ({server: servers[server] for server in shard} for shard in shards)
        others = [start_actor(each, settings) for each in rest]
        actor, _ = start_actor(first, settings, others)
        handle = RouterHandle(actor, [other for other, _ in others])
        if others:
            handle.get_all_servers.remote()  # else the first actor exchanges nothing until a conversation begins there
        return handle


KvRouter = _RouterClass()
"""The `router_class` of a YAML."""


def _collect_no_garbage_by_itself() -> None:
    """Leave full garbage collections to moments without rollouts, since each one scans everything that waits."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 1_000_000_000)


def _background_task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that nobody awaits; if it ends by an error, the error is logged."""
    task = asyncio.create_task(work)
    task.add_done_callback(_log_error)
    return task


def _log_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("a background task of the router failed; the router continues without it", exc_info=error)
