"""SynthesisJob -> the files of `verl-pivot synthesize`: items in turn, resumable after kill -9, within a budget."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.files import make_folder
from verl_pivot.data.journal import Journal, input_identity, open_journal
from verl_pivot.engines.answer_cache import AnswerCache
from verl_pivot.engines.retries import Retries
from verl_pivot.synthesis.asking import AnswerGate
from verl_pivot.synthesis.budget import Budget, BudgetLimits
from verl_pivot.synthesis.draft_store import DraftStore
from verl_pivot.synthesis.drafts import Draft, StepTrace
from verl_pivot.synthesis.item_steps import OUT_OF_BUDGET, ItemRunner
from verl_pivot.synthesis.outputs import OUTPUTS, SynthesisReport, write_outputs
from verl_pivot.synthesis.recipes import Recipe, RecipeStep, items
from verl_pivot.synthesis.workshop import Inputs
from verl_pivot.synthesis.writer import Writer
from verl_pivot.types import JsonObject

_COMMIT_SECONDS: Final = 1.0
"""Seconds of finished items that are made again after kill -9, out of the cache."""
_ANSWERS: Final = "answers"
"""Folder in the output that keeps the answers of models for later runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisJob:
    """What is made, and how."""

    recipe: Recipe
    inputs: Inputs
    writers: Mapping[str, Writer]
    """{role: who plays it}"""
    out: Path
    """Folder of the output."""
    identity: JsonObject
    """Everything else that the output depends on, by which an interrupted run is known again."""
    seed: int = 0
    limits: BudgetLimits
    retries: Retries
    concurrency: int = 32
    """Questions at a time, and items at a time."""

    def settings(self) -> JsonObject:
        inputs = [path for path in (self.inputs.tasks, self.inputs.trajectories) if path is not None]
        return {
            "recipe": self.recipe.content,  # type: ignore[dict-item]  # checked to be JSON when it was read
            "seed": self.seed,
            "inputs": [input_identity(path) for path in inputs],
            "writers": {role: [writer.name, writer.answer_format] for role, writer in self.writers.items()},
            **self.identity,
        }


def run_synthesis(job: SynthesisJob, on_items: Callable[[int], object]) -> SynthesisReport:
    """Make all items and write the output; after kill -9 the same call goes on.

    Args:
        job: What is made.
        on_items: Called with the number of items that are done since the call before.

    Raises:
        EngineError: If an endpoint cannot be reached or keeps failing; what was made stays for the next call.
        ConfigError: If a setting is wrong, or the output cannot be written.
        DataError: If the input cannot be read, or the filters at the end leave nothing.
        UserCodeError: If code of the user fails before it has worked once.
    """
    with open_journal(job.out, job.settings()) as journal:
        store = DraftStore(journal)
        if not journal.is_finished:
            prepared = asyncio.run(_make_all(job, journal, store, on_items))
            write_outputs(job.recipe, job.seed, journal, store, prepared)
        make_folder(job.out)
        journal.finish({name: job.out / name for name in OUTPUTS})
    return SynthesisReport.read(job.out)


async def _make_all(
    job: SynthesisJob, journal: Journal, store: DraftStore, on_items: Callable[[int], object]
) -> list[StepTrace]:
    """Make all items; gives back the traces of what steps did before the first."""
    async with opened_runner(job, journal.folder) as runner:
        on_items(store.num_items)
        await _make_items(job, journal, store, runner, on_items)
        for step in job.recipe.cross_steps:
            await _choose_across(step, store, runner)
    journal.commit({})
    return runner.prepared


@asynccontextmanager
async def opened_runner(job: SynthesisJob, folder: Path) -> AsyncIterator[ItemRunner]:
    """The steps of a job, prepared, with their cache and budget; all writers are closed at the end.

    Args:
        job: The job.
        folder: Keeps what the budget has spent.
    """
    budget = Budget(job.limits, folder / "budget.txt")
    gate = AnswerGate(AnswerCache(job.out / _ANSWERS), budget, job.retries, concurrency=job.concurrency)
    runner = ItemRunner(job.recipe, job.inputs, job.writers, gate, recipe_seed=job.seed)
    try:
        await runner.prepare()
        yield runner
    finally:
        await gate.close()
        budget.close()
        for writer in job.writers.values():
            await writer.close()


async def _make_items(
    job: SynthesisJob, journal: Journal, store: DraftStore, runner: ItemRunner, on_items: Callable[[int], object]
) -> None:
    """Make the items that are not finished, several at once; the first error ends all of them."""
    waiting = ((number, item) for number, item in enumerate(items(job.recipe, job.inputs)) if not store.has(number))
    committed_at = time.monotonic()

    async def work() -> None:
        nonlocal committed_at
        for number, item in waiting:  # all workers share the iterator
            drafts = await runner.run(item)
            store.add(number, drafts, is_cut_short=is_cut_short(drafts))
            on_items(1)
            if time.monotonic() - committed_at > _COMMIT_SECONDS:
                journal.commit({})
                committed_at = time.monotonic()

    await all_at_once(work() for _ in range(job.concurrency))


def is_cut_short(drafts: Iterable[Draft]) -> bool:
    """Whether the budget did not cover some of an item."""
    return any(draft.finding is not None and draft.finding.reason == OUT_OF_BUDGET for draft in drafts)


async def _choose_across(step: RecipeStep, store: DraftStore, runner: ItemRunner) -> None:
    """Note what a step does to the drafts of each group, whichever items they are of."""
    for group in store.groups():
        name = group[0].draft.group or group[0].draft.item
        left = await runner.choose(step, name, [each.draft for each in group])
        for place, draft in zip(group, left, strict=True):
            store.choose(place, draft)
