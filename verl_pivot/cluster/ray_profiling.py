"""A Ray cluster -> a WorkerPool on its nodes: ProfileWorkers as actors, which end with this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_pivot.cluster.profile_worker import ProfileWorker, WorkerSettings
from verl_pivot.cluster.worker_pool import Measured, Slot, WorkerLostError, WorkerPool
from verl_pivot.errors import ConfigError, EngineError, PivotError
from verl_pivot.profiling.profiler import Totals
from verl_pivot.types import Turn
from verl_pivot.verifiers.judge_usage import usage

START_SECONDS = 2000.0
"""Large checkpoints take SGLang's half an hour to load."""
STOP_SECONDS = 15.0
MAX_CONCURRENT_CALLS = 100_000
"""Of one worker: the number of turns under way is bounded by the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How many workers a node has."""

    workers_per_node: int
    """Where servers are shared."""
    gpus_per_server: int
    """Where each worker starts its own: then a node has as many as its GPUs suffice for."""


class RayWorker:
    """A ProfileWorker as an actor."""

    def __init__(self, actor: Any, address: str, *, has_server: bool) -> None:
        self._actor = actor
        self._address = address
        self._has_server = has_server
        """Of its own, whose end is this worker's end and nobody else's."""

    async def start(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._answer(self._actor.start.remote())
        except TimeoutError as error:
            raise WorkerLostError(f"the worker on {self._address} did not start in {START_SECONDS:.0f} s") from error

    async def measure(self, turn: Turn) -> Measured:
        measured: Measured = await self._answer(self._actor.measure.remote(turn))
        return measured

    async def end(self) -> None:
        if self._has_server:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._actor.stop.remote()
        self.kill()

    def kill(self) -> None:
        ray.kill(self._actor)

    async def _answer(self, reference: Any) -> Any:
        try:
            return await reference
        except RayTaskError as error:
            raise self._raised(error, error.cause) from None
        except RayError as error:
            first_line = str(error).strip().partition("\n")[0]
            raise WorkerLostError(f"the worker on {self._address} is lost: {first_line}") from error

    def _raised(self, error: Exception, cause: object) -> Exception:
        """What the worker raised, with the traceback there if it was a bug."""
        if not isinstance(cause, PivotError):
            return error
        cause.args = (f"on {self._address}: {cause}",)
        return WorkerLostError(str(cause)) if isinstance(cause, EngineError) and self._has_server else cause


class RayCluster:
    """The cluster of this process."""

    def __init__(self, settings: WorkerSettings, sharing: Sharing) -> None:
        self._settings = ray.put(settings)
        self._sharing = sharing
        self._has_servers = settings.has_servers
        self._numbers = count()

    async def slots(self) -> Mapping[Slot, str]:
        try:
            nodes = await asyncio.to_thread(ray.nodes)
        except RayError as error:
            raise EngineError(f"the Ray cluster does not answer: {error!r}") from error
        return {
            Slot(node["NodeID"], number): node["NodeManagerAddress"]
            for node in nodes
            if node["Alive"]
            for number in range(self._num_workers(node["Resources"]))
        }

    def make(self, slot: Slot, address: str) -> RayWorker:
        options = ray.remote(ProfileWorker).options(
            num_cpus=0,  # it mostly waits; a busy cluster would never start it
            num_gpus=0 if self._has_servers else self._sharing.gpus_per_server,
            max_restarts=0,
            max_concurrency=MAX_CONCURRENT_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=slot.node_id, soft=False),
        )
        actor = options.remote(self._settings, next(self._numbers))
        return RayWorker(actor, address, has_server=not self._has_servers)

    def _num_workers(self, resources: Mapping[str, float]) -> int:
        """A node without CPUs, as heads often are, is not meant to work."""
        if not self._has_servers:
            return int(resources.get("GPU", 0) // self._sharing.gpus_per_server)
        return self._sharing.workers_per_node if resources.get("CPU", 0) else 0


@asynccontextmanager
async def worker_pool(
    settings: WorkerSettings, sharing: Sharing, totals: Totals, say: Callable[[str], None]
) -> AsyncIterator[WorkerPool]:
    """Workers on the cluster that this process is connected to; yields when the first of them is ready.

    Raises:
        ConfigError: If no node can have one, or the settings do not fit a node.
        EngineError: If none starts.
    """
    cluster = RayCluster(settings, sharing)
    if not await cluster.slots():
        need = "CPUs" if settings.has_servers else f"{sharing.gpus_per_server} GPUs for a server; name --endpoint"
        raise ConfigError(f"no node of the Ray cluster has {need}")
    pool = WorkerPool(cluster, totals, usage.update, say)
    ray._private.worker._worker_logs_enabled = False  # a paragraph for each lost worker, beside what `say` takes
    try:
        await pool.open()
        yield pool
    finally:
        await pool.close()
