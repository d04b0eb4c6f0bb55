"""Items by workers on a cluster, without Ray: all values between the processes are pickled, as by Ray."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.synthesis.test_running import NUM_ITEMS, STEPS
from verl_pivot.engines.chat import ChatAnswer
from verl_pivot.engines.retries import Retries
from verl_pivot.errors import ConfigError, OutOfBudgetError, UserCodeError
from verl_pivot.synthesis import question_desk
from verl_pivot.synthesis.budget import BudgetLimits
from verl_pivot.synthesis.drafts import Draft, draft_as_dict
from verl_pivot.synthesis.item_steps import ItemRunner
from verl_pivot.synthesis.item_worker import ItemTask, ItemWorker, ItemWorkerSettings, MadeItem, OpenGate
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.question_desk import QuestionDesk
from verl_pivot.synthesis.recipes import read_recipe
from verl_pivot.synthesis.running import opened_runner
from verl_pivot.synthesis.spread_runner import SpreadRunner
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import ProgramWriter, Writer, WriterQuestion
from verl_pivot.workers.command_home import CommandHome
from verl_pivot.workers.worker_pool import Slot, WorkerLostError, WorkerPool


def carried(value: Any) -> Any:
    """A value as another process gets it."""
    return pickle.loads(pickle.dumps(value))


@dataclass
class DeskFriend:
    """A writer in a worker, without Ray: it passes questions on to the desk."""

    desk: QuestionDesk
    name: str
    identity: str = ""
    role: str = "writer"
    answer_format: Any = "text"

    def most_tokens(self, question: WriterQuestion) -> int:
        return 0

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        answer: ChatAnswer = carried(await self.desk.answer(self.role, carried(question)))
        return answer

    async def close(self) -> None:
        """Do nothing: the desk closes its writers."""


@dataclass
class CarryingWorker:
    """An ItemWorker that is lost once at each item in its cluster's `deadly`."""

    worker: ItemWorker
    cluster: "TwoNodes"

    async def start(self) -> None:
        await self.worker.start()

    async def work(self, task: ItemTask) -> MadeItem:
        if task.item.id in self.cluster.deadly:
            self.cluster.deadly.remove(task.item.id)
            raise WorkerLostError("the worker on 10.0.0.7 is lost")
        await asyncio.sleep(0)
        made: MadeItem = carried(await self.worker.work(carried(task)))
        return made

    async def end(self) -> None:
        """Do nothing: there is no process to end."""

    def kill(self) -> None:
        """Do nothing: there is no process to kill."""


@dataclass
class TwoNodes:
    settings: ItemWorkerSettings
    deadly: set[str]
    made: list[CarryingWorker] = field(default_factory=list)

    async def slots(self) -> Mapping[Slot, str]:
        return {Slot(node, 0): node for node in ("10.0.0.7", "10.0.0.8")}

    def make(self, slot: Slot, address: str) -> CarryingWorker:
        self.made.append(CarryingWorker(ItemWorker(self.settings, len(self.made)), self))
        return self.made[-1]


def job_of(folder: Path, steps: str, name: str, **limits: Any) -> SynthesisJob:
    (folder / "recipe.yaml").write_text(f"- numbers: {{num: {NUM_ITEMS}}}\n{steps}")
    (folder / name).mkdir()
    return SynthesisJob(
        recipe=read_recipe(str(folder / "recipe.yaml"), {}, [STEPS]),
        inputs=Inputs(),
        writers={"writer": ProgramWriter(f"{STEPS}:number")},
        out=folder / name,
        identity={},
        limits=BudgetLimits(**limits),
        retries=Retries(num_attempts=1),
        concurrency=4,
    )


async def made_here(job: SynthesisJob) -> list[list[Draft]]:
    async with opened_runner(job, job.out) as runner:
        return [list(await runner.run(Draft(id=str(number)))) for number in range(NUM_ITEMS)]


async def made_by_workers(
    job: SynthesisJob, deadly: Sequence[str] = (), said: list[str] | None = None
) -> list[list[Draft]]:
    home = CommandHome.of_this_process()
    desk = QuestionDesk(home, carried(job.gate_settings(job.out)), pickle.dumps(dict(job.writers)))
    async with AsyncExitStack() as stack:
        await desk.open()
        stack.push_async_callback(desk.close)
        writers: dict[str, Writer] = {role: DeskFriend(desk, each.name) for role, each in job.writers.items()}
        settings = ItemWorkerSettings(
            home=home, recipe_name="recipe.yaml", recipe=carried(job.recipe.content), seed=job.seed, tasks=None,
            trajectories=None, tools=None, modules=(STEPS,), writers=writers,
        )  # fmt: skip
        lost = [] if said is None else said
        pool = WorkerPool[ItemTask, MadeItem](TwoNodes(settings, set(deadly)), lost.append, check_seconds=0.01)
        here = ItemRunner(job.recipe, job.inputs, writers, OpenGate(), recipe_seed=job.seed)
        await here.prepare()
        await pool.open()
        stack.push_async_callback(pool.close)
        runner = SpreadRunner(here, pool)
        return [list(each) for each in await asyncio.gather(*(runner.run(Draft(id=str(n))) for n in range(NUM_ITEMS)))]


def as_lines(items: list[list[Draft]]) -> list[list[Any]]:
    return [[draft_as_dict(draft) for draft in drafts] for drafts in items]


def test_workers_make_the_drafts_of_one_process_also_where_one_of_them_is_lost(tmp_path: Path) -> None:
    steps = "- probed\n- copies\n- by_digit\n- digit: {least: 3, undecided: [7]}\n"
    said: list[str] = []

    alone = asyncio.run(made_here(job_of(tmp_path, steps, "alone")))
    spread = asyncio.run(made_by_workers(job_of(tmp_path, steps, "spread"), ["3", "8"], said))

    assert as_lines(spread) == as_lines(alone)
    assert {each.split(" (")[0] for each in said} == {"the worker on 10.0.0.7 is lost"}
    ledgers = [(tmp_path / name / "budget.txt").read_text().count("call ") for name in ("alone", "spread")]
    assert ledgers == [3 + 2 * NUM_ITEMS] * 2


def test_what_the_budget_at_the_desk_does_not_cover_is_a_draft_with_that_reason(tmp_path: Path) -> None:
    spread = asyncio.run(made_by_workers(job_of(tmp_path, "- copies\n", "spread", calls=20)))

    reasons = [draft.finding and draft.finding.reason for drafts in spread for draft in drafts]
    assert set(reasons) == {None, "out_of_budget"}
    assert (tmp_path / "spread" / "budget.txt").read_text().count("call ") == 20


def test_code_that_worked_in_another_process_rejects_one_draft_and_code_that_never_did_ends_the_run(
    tmp_path: Path,
) -> None:
    broken = asyncio.run(made_by_workers(job_of(tmp_path, "- copies\n- digit: {least: 0, breaks_at: [7/1]}\n", "one")))
    reasons = [draft.finding.reason for drafts in broken for draft in drafts if draft.finding]
    assert reasons == ["user_code_failed"]

    everywhere = [f"{item}/{number}" for item in range(NUM_ITEMS) for number in range(2)]
    steps = f"- copies\n- digit: {{least: 0, breaks_at: {everywhere}}}\n"
    with pytest.raises(UserCodeError, match="the checker broke at"):
        asyncio.run(made_by_workers(job_of(tmp_path, steps, "all")))


async def test_a_desk_waits_until_that_of_a_killed_command_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, "- copies\n", "out")
    first, second = (
        QuestionDesk(CommandHome.of_this_process(), job.gate_settings(job.out), pickle.dumps(dict(job.writers)))
        for _ in range(2)
    )
    await first.open()
    waiting = asyncio.create_task(second.open())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await first.close()
    await waiting
    await second.close()

    await first.open()
    monkeypatch.setattr(question_desk, "_PATIENCE_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"desk\.lock is locked by another process .*: wait until it ends, or end it"):
        await second.open()
    await first.close()


def test_errors_of_the_desk_survive_pickle() -> None:
    for error in (OutOfBudgetError("the budget of 3 calls is used up"), UserCodeError("program x returned 3")):
        assert (type(carried(error)), str(carried(error))) == (type(error), str(error))
