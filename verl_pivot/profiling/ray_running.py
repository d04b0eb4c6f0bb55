"""ProfileJob -> profiles of its missing turns, measured by workers on a Ray cluster (`verl-pivot profile --ray`)."""

import asyncio
import time
from contextlib import AsyncExitStack

from rich.console import Console

from verl_pivot.profiling.job import ProfileJob, RayOptions, TurnCounts, TurnProgress
from verl_pivot.profiling.profiler import Totals, profile_turns
from verl_pivot.profiling.servers import find_openai_server
from verl_pivot.profiling.turn_pool import Measured, TurnPool
from verl_pivot.profiling.worker import ProfileWorker, WorkerSettings
from verl_pivot.profiling.writer import ProfileWriter
from verl_pivot.types import Turn
from verl_pivot.verifiers.judge_usage import usage
from verl_pivot.workers.command_home import CommandHome
from verl_pivot.workers.ray_connection import connected
from verl_pivot.workers.ray_workers import RayWorkerCluster, ray_worker_pool


def measure_on_ray(
    job: ProfileJob,
    on_ray: RayOptions,
    writer: ProfileWriter,
    counts: TurnCounts,
    totals: Totals,
    console: Console,
    progress: TurnProgress,
) -> float:
    """Measure the turns that the profile lacks; returns the `time.monotonic()` at which sampling began.

    Raises:
        ConfigError: If there is no cluster, or the settings do not fit one of its nodes.
        EngineError: If no worker or no server is left that works.
    """

    def say(message: str) -> None:
        console.print(message, highlight=False, soft_wrap=True)

    async def run() -> float:
        async with AsyncExitStack() as stack:
            with console.status("starting workers on the Ray cluster"):
                settings = await _worker_settings(job, on_ray)
                pool = await stack.enter_async_context(ray_worker_pool(_cluster(settings, on_ray), say))
            begin = time.monotonic()
            with progress(counts, totals) as on_turn:
                num_servers = max(1, len(settings.endpoints)) if settings.has_servers else pool.num_places
                concurrency = job.concurrency * num_servers
                turns = TurnPool(pool, totals, usage.update, say)
                await profile_turns(job.turns(), turns, writer, concurrency=concurrency, on_turn=on_turn)
        return begin

    with connected(on_ray.address):
        return asyncio.run(run())


async def _worker_settings(job: ProfileJob, on_ray: RayOptions) -> WorkerSettings:
    return WorkerSettings(
        profile=job.settings,
        seed=job.seed,
        retries=job.retries,
        endpoints=job.endpoints,
        openai=await find_openai_server(job),
        server_flags=job.server_flags,
        verifier_modules=on_ray.verifier_modules,
        home=CommandHome.of_this_process(),
    )


def _cluster(settings: WorkerSettings, on_ray: RayOptions) -> RayWorkerCluster[Turn, Measured]:
    if settings.has_servers:
        return RayWorkerCluster(ProfileWorker, settings, workers_per_node=on_ray.workers_per_node)
    return RayWorkerCluster(ProfileWorker, settings, gpus_per_worker=on_ray.gpus_per_server)
