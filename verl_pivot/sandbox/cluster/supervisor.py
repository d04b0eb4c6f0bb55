"""Nodes of a cluster -> one sandbox service on each, kept alive; placement.py decides what is to be done."""

import asyncio
import os
import time
import traceback
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.cluster.placement import Phase, ServicePlace, plan
from verl_pivot.sandbox.discovery import Listing
from verl_pivot.sandbox.local_service import LocalService
from verl_pivot.sandbox.wire import Health, decode_health

CHECK_SECONDS = 2.0
"""Seconds between two health checks of all services."""
HEALTH_SECONDS = 5.0
"""Seconds that a service has to answer a health check."""
PACKAGE_FOLDER = Path(__file__).parents[3]
"""Folder that holds the package verl_pivot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Outcome of a start: the service's URL, or the problem; the other one is empty."""

    url: str = ""
    problem: str = ""


class NodeService:
    """The service of the node that this process runs on: a child process, which ends with this one."""

    def __init__(self, address: str, arguments: tuple[str, ...], token: str) -> None:
        if PACKAGE_FOLDER.name != "site-packages":  # a checkout: the child may not find it as this process did
            paths = [str(PACKAGE_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
            os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        self._service = LocalService(("--host", address, *arguments), token)

    def start(self) -> Started:
        """Wait until the service answers, or has failed to start."""
        try:
            self._service.wait_ready()
        except SandboxError as error:
            return Started(problem=str(error))
        return Started(url=self._service.url)

    def stop(self) -> None:
        self._service.stop()


class RemoteNodeService(Protocol):
    """A NodeService on another node."""

    async def start(self) -> Started:
        """Wait until the service answers, or has failed to start; raises SandboxError if the node does not answer."""
        ...

    async def end(self) -> None:
        """End the service and all its processes, cleanly if the node still answers."""
        ...

    def abandon(self) -> None:
        """Forget the service of a node that is gone; processes that are left of it end by themselves."""
        ...


class NodeCluster(Protocol):
    """Cluster whose nodes get services."""

    async def alive_nodes(self) -> Mapping[str, str]:
        """{node id: address} of the nodes that are alive."""
        ...

    def make_service(self, place: ServicePlace, arguments: tuple[str, ...], token: str) -> RemoteNodeService:
        """Begin to make a NodeService on the node of `place`."""
        ...


class Supervisor:
    """Keeps one service on each node that is alive, until `stop`."""

    def __init__(
        self, cluster: NodeCluster, arguments: tuple[str, ...], token: str, check_seconds: float = CHECK_SECONDS
    ) -> None:
        self._cluster = cluster
        self._arguments = arguments
        self._token = token
        self._check_seconds = check_seconds
        self._places: dict[str, ServicePlace] = {}
        self._services: dict[str, RemoteNodeService] = {}
        """{node id: its service}."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """{node id: task of the latest start or end of its service}."""
        self._keeping = self._run(self._keep())

    async def listing(self) -> Listing:
        """Services that clients may use."""
        urls = [place.url for place in self._places.values() if place.phase is Phase.SERVING]
        return Listing(urls=tuple(urls), token=self._token)

    async def arguments(self) -> tuple[str, ...]:
        """Arguments of every service."""
        return self._arguments

    async def places(self) -> list[ServicePlace]:
        return list(self._places.values())

    async def try_again(self) -> None:
        """Start services at once where they failed before."""
        for place in self._places.values():
            place.try_again()

    async def stop(self) -> None:
        """End every service; running programs get the service's drain time to end."""
        tasks = [self._keeping, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._places.clear()
        await asyncio.gather(*map(self._end, list(self._services)))

    async def _keep(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HEALTH_SECONDS)) as http:
            while True:
                serving = [place for place in self._places.values() if place.phase is Phase.SERVING]
                await asyncio.gather(*(self._check(http, place) for place in serving))
                self._step(http, await self._cluster.alive_nodes())
                await asyncio.sleep(self._check_seconds)

    def _step(self, http: aiohttp.ClientSession, alive: Mapping[str, str]) -> None:
        chosen = plan(alive, self._places, time.monotonic())
        for node_id in chosen.forget:
            self._forget(node_id)
        for node_id in chosen.start:
            place = self._places.setdefault(node_id, ServicePlace(node_id=node_id, address=alive[node_id]))
            place.starting()
            self._tasks[node_id] = self._run(self._start(http, place))
        for node_id in chosen.end:
            self._places[node_id].ending()
            self._tasks[node_id] = self._run(self._replace(self._places[node_id]))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(_die_of_bugs)
        return task

    def _forget(self, node_id: str) -> None:
        del self._places[node_id]
        self._tasks.pop(node_id).cancel()
        if node_id in self._services:
            self._services.pop(node_id).abandon()

    async def _start(self, http: aiohttp.ClientSession, place: ServicePlace) -> None:
        service = self._services[place.node_id] = self._cluster.make_service(place, self._arguments, self._token)
        try:
            started = await service.start()
            health = None if started.problem else await _ask_health(http, started.url)
            problem = started.problem
        except SandboxError as error:
            health, problem = None, str(error)
        if health is not None:
            place.serves(started.url, health, time.monotonic())
        else:
            await self._end(place.node_id)
            place.failed(problem, time.monotonic())

    async def _check(self, http: aiohttp.ClientSession, place: ServicePlace) -> None:
        try:
            place.check_passed(await _ask_health(http, place.url), time.monotonic())
        except SandboxError as error:
            place.check_failed(str(error))

    async def _replace(self, place: ServicePlace) -> None:
        await self._end(place.node_id)
        place.failed(place.problem, time.monotonic())

    async def _end(self, node_id: str) -> None:
        await self._services.pop(node_id).end()


async def _ask_health(http: aiohttp.ClientSession, url: str) -> Health:
    """Health of a service; raises SandboxError if it does not answer with status 200."""
    try:
        async with http.get(f"{url}/healthz") as response:
            body = await response.read()
            if response.status == 200:
                return decode_health(body)
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SandboxError(f"{url} does not answer: {error!r}") from error
    raise SandboxError(f"{url} answers {response.status}: {body[:200]!r}")


def _die_of_bugs(task: "asyncio.Task[None]") -> None:
    """End this process if a task failed, so that Ray restarts it; without the task it would only look healthy."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)
        os._exit(1)
