"""What `verl-pivot profile --ray` asks for -> the profile, measured by workers on a cluster."""

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from rich.console import Console

from verl_pivot.cluster.profile_worker import OpenAIServer, WorkerSettings, passed_variables
from verl_pivot.cluster.ray_nodes import connected
from verl_pivot.cluster.ray_profiling import Sharing, worker_pool
from verl_pivot.commands.profile_display import TurnCounts, progress
from verl_pivot.profiling.profiler import Totals, profile_turns
from verl_pivot.profiling.writer import ProfileWriter

if TYPE_CHECKING:
    from verl_pivot.commands.profile import Job, RayOptions


def measure_on_ray(
    job: "Job", on_ray: "RayOptions", writer: ProfileWriter, counts: TurnCounts, totals: Totals, console: Console
) -> float:
    """Returns when sampling began (time.monotonic), start of the workers not included.

    Raises:
        ConfigError: If there is no cluster, or the settings do not fit one of its nodes.
        EngineError: If no worker or no server is left.
    """

    def say(message: str) -> None:
        console.print(message, highlight=False, soft_wrap=True)

    async def run() -> float:
        async with AsyncExitStack() as stack:
            with console.status("starting workers on the Ray cluster"):
                settings = await _worker_settings(job, on_ray)
                sharing = Sharing(workers_per_node=on_ray.workers_per_node, gpus_per_server=on_ray.gpus_per_server)
                pool = await stack.enter_async_context(worker_pool(settings, sharing, totals, say))
            begin = time.monotonic()
            with progress(counts, totals, console) as on_turn:
                num_servers = max(1, len(settings.endpoints)) if settings.has_servers else pool.num_places
                concurrency = job.concurrency * num_servers
                await profile_turns(job.turns(), pool, writer, concurrency=concurrency, on_turn=on_turn)
        return begin

    with connected(on_ray.address):
        return asyncio.run(run())


async def _worker_settings(job: "Job", on_ray: "RayOptions") -> WorkerSettings:
    return WorkerSettings(
        profile=job.settings,
        seed=job.seed,
        retries=job.retries,
        endpoints=job.endpoints,
        openai=await _openai_server(job),
        server_flags=job.server_flags,
        verifier_modules=on_ray.verifier_modules,
        folder=os.getcwd(),
        python_path=tuple(sys.path),
        variables=passed_variables(os.environ),
    )


async def _openai_server(job: "Job") -> OpenAIServer | None:
    from verl_pivot.rollout.openai_engine import served_model

    if job.openai is None:
        return None
    api_key = os.environ.get("OPENAI_API_KEY", "none")
    name = await served_model(job.openai, job.settings.model, api_key, job.retries)
    return OpenAIServer(url=job.openai, model=name, api_key=api_key)
