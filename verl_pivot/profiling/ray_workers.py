"""A Ray cluster -> a WorkerPool whose ProfileWorkers are Ray actors on its nodes; they end with this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_pivot.errors import ConfigError, EngineError, PivotError
from verl_pivot.profiling.job import RayOptions
from verl_pivot.profiling.profiler import Totals
from verl_pivot.profiling.worker import ProfileWorker, WorkerSettings
from verl_pivot.profiling.worker_pool import Measured, Slot, WorkerLostError, WorkerPool
from verl_pivot.types import Turn
from verl_pivot.verifiers.judge_usage import usage

START_SECONDS = 2000.0
"""Seconds until a worker must have started; SGLang may take half an hour to load a large checkpoint."""
STOP_SECONDS = 15.0
"""Seconds that a worker gets to end its server."""
MAX_CONCURRENT_CALLS = 100_000
"""Calls that Ray lets one worker run at once; practically no limit, since the command limits the turns in flight."""


class RayWorker:
    """A ProfileWorker as a Ray actor."""

    def __init__(self, actor: Any, address: str, *, has_server: bool) -> None:
        self._actor = actor
        self._address = address
        self._has_server = has_server
        """Whether the worker has a server of its own: if that server fails, only this worker is lost."""

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
        """Exception for an error in the worker: errors of ours name the node, others keep their remote traceback."""
        if not isinstance(cause, PivotError):
            return error
        cause.args = (f"on {self._address}: {cause}",)
        return WorkerLostError(str(cause)) if isinstance(cause, EngineError) and self._has_server else cause


class RayWorkerCluster:
    """The Ray cluster that this process is connected to."""

    def __init__(self, settings: WorkerSettings, on_ray: RayOptions) -> None:
        self._settings = ray.put(settings)
        self._on_ray = on_ray
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
            num_cpus=0,  # a worker mostly waits, and on a busy cluster one that asks for a CPU may never start
            num_gpus=0 if self._has_servers else self._on_ray.gpus_per_server,
            max_restarts=0,
            max_concurrency=MAX_CONCURRENT_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=slot.node_id, soft=False),
        )
        actor = options.remote(self._settings, next(self._numbers))
        return RayWorker(actor, address, has_server=not self._has_servers)

    def _num_workers(self, resources: Mapping[str, float]) -> int:
        """Workers of a node; none on a node without CPUs, as head nodes often are."""
        if not self._has_servers:
            return int(resources.get("GPU", 0) // self._on_ray.gpus_per_server)
        return self._on_ray.workers_per_node if resources.get("CPU", 0) else 0


@asynccontextmanager
async def ray_worker_pool(
    settings: WorkerSettings, on_ray: RayOptions, totals: Totals, say: Callable[[str], None]
) -> AsyncIterator[WorkerPool]:
    """Start workers on the Ray cluster that this process is connected to; yields when the first one is ready.

    Raises:
        ConfigError: If no node can have a worker, or the settings do not fit a node.
        EngineError: If no worker starts.
    """
    cluster = RayWorkerCluster(settings, on_ray)
    if not await cluster.slots():
        need = "CPUs" if settings.has_servers else f"{on_ray.gpus_per_server} GPUs for a server; name --endpoint"
        raise ConfigError(f"no node of the Ray cluster has {need}")
    pool = WorkerPool(cluster, totals, usage.update, say)
    ray._private.worker._worker_logs_enabled = False  # Ray prints a paragraph for each lost worker, `say` one line
    try:
        await pool.open()
        yield pool
    finally:
        await pool.close()
