"""SynthesisJob -> its items, made by workers on a Ray cluster; one desk asks the models (`synthesize --ray`)."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_pivot.engines.chat import AnswerFormat, ChatAnswer
from verl_pivot.errors import ConfigError, EngineError, PivotError
from verl_pivot.synthesis.item_steps import ItemRunner
from verl_pivot.synthesis.item_worker import ItemTask, ItemWorker, ItemWorkerSettings, MadeItem, OpenGate
from verl_pivot.synthesis.job import SpreadOptions, SynthesisJob
from verl_pivot.synthesis.question_desk import QuestionDesk
from verl_pivot.synthesis.spread_runner import SpreadRunner
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.workers.command_home import CommandHome
from verl_pivot.workers.ray_connection import connected, loss_reason
from verl_pivot.workers.ray_workers import MAX_CONCURRENT_CALLS, STOP_SECONDS, RayWorkerCluster, ray_worker_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskWriter:
    """A writer in a worker, which forwards its questions to the question desk."""

    role: str
    name: str
    identity: str
    answer_format: AnswerFormat
    desk: Any
    """Ray's handle of the QuestionDesk."""

    def most_tokens(self, question: WriterQuestion) -> int:
        """0, because the budget is reserved at the desk."""
        return 0

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        answer: ChatAnswer = await answered(self.desk.answer.remote(self.role, question))
        return answer

    async def close(self) -> None:
        """Do nothing: the desk closes the real writer."""


@asynccontextmanager
async def runner_on_ray(job: SynthesisJob, on_ray: SpreadOptions, folder: Path) -> AsyncIterator[SpreadRunner]:
    """Workers on the nodes of a cluster, and a desk on this machine; all of them end with the block or this process.

    Args:
        job: The job.
        on_ray: Options of the cluster.
        folder: Folder of the ledger, which records the spent budget.

    Raises:
        ConfigError: If there is no cluster, or the settings do not fit one of its nodes.
        EngineError: If no worker starts.
    """
    if on_ray.address.startswith("ray://"):
        raise ConfigError(
            f"--address {on_ray.address} is not supported: run this command on a node of the cluster, and give "
            "host:port or auto"
        )
    home = CommandHome.of_this_process()
    with connected(on_ray.address):
        async with _opened_desk(job, home, folder, on_ray.say) as desk:
            writers = {
                role: DeskWriter(
                    role=role, name=each.name, identity=each.identity, answer_format=each.answer_format, desk=desk
                )
                for role, each in job.writers.items()
            }
            here = ItemRunner(job.recipe, job.inputs, writers, OpenGate(), recipe_seed=job.seed)
            await here.prepare()  # before the workers, so that they find the answers in the cache
            settings = ItemWorkerSettings(
                home=home,
                recipe_name=f"{job.recipe.name}.yaml",
                recipe=job.recipe.content,
                seed=job.seed,
                tasks=job.inputs.tasks,
                trajectories=job.inputs.trajectories,
                tools=on_ray.tools,
                modules=on_ray.modules,
                writers=writers,
            )
            cluster = RayWorkerCluster[ItemTask, MadeItem](
                ItemWorker, settings, workers_per_node=on_ray.workers_per_node
            )
            async with ray_worker_pool(cluster, on_ray.say) as workers:
                yield SpreadRunner(here, workers)


@asynccontextmanager
async def _opened_desk(
    job: SynthesisJob, home: CommandHome, folder: Path, say: Callable[[str], None]
) -> AsyncIterator[Any]:
    """Ray's handle of the desk, on the node of this process."""
    node = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    options = ray.remote(QuestionDesk).options(
        num_cpus=0, max_restarts=0, max_concurrency=MAX_CONCURRENT_CALLS, scheduling_strategy=node
    )
    desk = options.remote(home, job.gate_settings(folder), pickle.dumps(dict(job.writers)))
    try:
        await answered(desk.open.remote())
        yield desk
    finally:
        await close_desk(desk, say)
        ray.kill(desk)


async def close_desk(desk: Any, say: Callable[[str], None]) -> None:
    """Let the desk close the budget and the writers; if it fails, tell the user what is lost.

    Every answer and the cost of every call are written immediately, so that only the time since the last written cost
    can be lost.

    Args:
        desk: Ray's handle of the QuestionDesk.
        say: Called with a message for the user.
    """
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await answered(desk.close.remote())
    except EngineError as error:
        reason = str(error)
    except RayTaskError as error:
        reason = f"the process that asks the models could not close the budget: {error.cause!r}"
    except TimeoutError:
        reason = f"the process that asks the models did not end within {STOP_SECONDS:g} s, and is killed"
    else:
        return
    say(f"{reason}. All answers and costs are kept; the seconds since the last cost are not counted in the budget")


async def answered(reference: Any) -> Any:
    """Result of a call to the desk.

    Raises:
        PivotError: The error that the desk raised.
        EngineError: If the desk's process is lost.
    """
    try:
        return await reference
    except RayTaskError as error:
        if isinstance(error.cause, PivotError):
            raise error.cause from None
        raise
    except RayError as error:
        raise EngineError(f"the process that asks the models is lost: {loss_reason(error)}") from error
