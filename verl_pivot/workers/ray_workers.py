"""A Ray cluster -> a WorkerPool whose workers are Ray actors on its nodes; they end with this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Generic

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_pivot.errors import ConfigError, EngineError, PivotError
from verl_pivot.workers.ray_connection import loss_reason
from verl_pivot.workers.worker_pool import ResultT, Slot, TaskT, WorkerLostError, WorkerPool

START_SECONDS = 2000.0
"""Seconds until a worker must have started; SGLang may take half an hour to load a large checkpoint."""
STOP_SECONDS = 15.0
"""Seconds that a worker gets to end its server."""
MAX_CONCURRENT_CALLS = 100_000
"""Calls that Ray lets one worker run at once; practically no limit, since the command limits the tasks in flight."""


class RayWorker(Generic[TaskT, ResultT]):
    """A worker as a Ray actor, whose class has `start`, `work` and, if it starts a server, `stop`."""

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

    async def work(self, task: TaskT) -> ResultT:
        result: ResultT = await self._answer(self._actor.work.remote(task))
        return result

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
            raise WorkerLostError(f"the worker on {self._address} is lost: {loss_reason(error)}") from error

    def _raised(self, error: Exception, cause: object) -> Exception:
        """Exception for an error in the worker: errors of ours name the node, others keep their remote traceback."""
        if not isinstance(cause, PivotError):
            return error
        cause.args = (f"on {self._address}: {cause}",)
        return WorkerLostError(str(cause)) if isinstance(cause, EngineError) and self._has_server else cause


class RayWorkerCluster(Generic[TaskT, ResultT]):
    """The Ray cluster that this process is connected to."""

    def __init__(
        self, kind: type, settings: object, *, workers_per_node: int = 1, gpus_per_worker: int | None = None
    ) -> None:
        """Make no worker yet.

        Args:
            kind: Class of the workers; each is made with the settings and a number of its own.
            settings: Settings, the same for all workers.
            workers_per_node: Number of workers on each node that has CPUs, if workers have no GPUs.
            gpus_per_worker: GPUs of each worker, for the server that it starts; None: workers start none.
        """
        self._actors = ray.remote(kind)
        self._settings = ray.put(settings)
        self._workers_per_node, self._gpus_per_worker = workers_per_node, gpus_per_worker
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

    def make(self, slot: Slot, address: str) -> RayWorker[TaskT, ResultT]:
        options = self._actors.options(
            num_cpus=0,  # a worker mostly waits, and on a busy cluster one that asks for a CPU may never start
            num_gpus=self._gpus_per_worker or 0,
            max_restarts=0,
            max_concurrency=MAX_CONCURRENT_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=slot.node_id, soft=False),
        )
        actor = options.remote(self._settings, next(self._numbers))
        return RayWorker(actor, address, has_server=self._gpus_per_worker is not None)

    @property
    def need(self) -> str:
        """What a node without a worker lacks, for the message."""
        if self._gpus_per_worker is None:
            return "CPUs"
        return f"{self._gpus_per_worker} GPUs for a server; give --endpoint"

    def _num_workers(self, resources: Mapping[str, float]) -> int:
        """Workers of a node; none on a node without CPUs, as head nodes often are."""
        if self._gpus_per_worker is not None:
            return int(resources.get("GPU", 0) // self._gpus_per_worker)
        return self._workers_per_node if resources.get("CPU", 0) else 0


@asynccontextmanager
async def ray_worker_pool(
    cluster: RayWorkerCluster[TaskT, ResultT], say: Callable[[str], None]
) -> AsyncIterator[WorkerPool[TaskT, ResultT]]:
    """Start workers on the Ray cluster that this process is connected to; yields when the first one is ready.

    Raises:
        ConfigError: If no node can have a worker, or the settings do not fit a node.
        EngineError: If no worker starts.
    """
    if not await cluster.slots():
        raise ConfigError(f"no node of the Ray cluster has {cluster.need}")
    pool = WorkerPool(cluster, say)
    ray._private.worker._worker_logs_enabled = False  # Ray prints a paragraph for each lost worker, `say` one line
    try:
        await pool.open()
        yield pool
    finally:
        await pool.close()
