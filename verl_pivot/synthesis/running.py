"""SynthesisJob -> the output files of `verl-pivot synthesize`: made item by item within a budget, and resumable."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from verl_pivot.all_at_once import all_at_once
from verl_pivot.data.files import make_folder
from verl_pivot.data.journal import Journal, open_journal
from verl_pivot.data.json_values import as_list
from verl_pivot.synthesis.asking import opened_gate
from verl_pivot.synthesis.draft_store import DraftStore
from verl_pivot.synthesis.drafts import Draft, StepTrace
from verl_pivot.synthesis.item_steps import OUT_OF_BUDGET, ItemRunner
from verl_pivot.synthesis.job import SynthesisJob
from verl_pivot.synthesis.outputs import OUTPUTS, SynthesisReport, write_outputs
from verl_pivot.synthesis.recipes import RecipeStep, items
from verl_pivot.types import JsonObject

_COMMIT_SECONDS: Final = 1.0
"""Interval of commits in seconds; items that finish after the last commit before a kill -9 are made again."""

_WORKED: Final = "worked"
"""Key of the journal's state with the labels of `Runner.worked`."""


class Runner(Protocol):
    """The prepared steps of a job: an `ItemRunner` in this process, or workers on a cluster."""

    @property
    def prepared(self) -> Sequence[StepTrace]:
        """Traces of the steps' preparation before the first draft."""
        ...

    @property
    def worked(self) -> set[str]:
        """Labels of the steps that have run at least once without an error in the user's own code, in any run."""
        ...

    async def run(self, item: Draft) -> Sequence[Draft]:
        """All drafts of an item after the steps, at least one, including rejected drafts."""
        ...

    async def choose(self, step: RecipeStep, group: str, rivals: Sequence[Draft]) -> Sequence[Draft]:
        """[num_rivals] the drafts of one group; the drafts that the step does not keep are rejected."""
        ...


def run_synthesis(job: SynthesisJob, on_items: Callable[[int], object]) -> SynthesisReport:
    """Make all items and write the output; after an interruption, even by kill -9, the same call resumes the run.

    Args:
        job: Options of the run.
        on_items: Called with the number of items that are done since the last call.

    Raises:
        EngineError: If an endpoint cannot be reached or keeps failing; finished items are kept for the next call.
        ConfigError: If a setting is wrong, or the output cannot be written.
        DataError: If the input cannot be read, or the filters at the end leave nothing.
        UserCodeError: If the user's own code fails before it has worked once.
    """
    with open_journal(job.out, job.settings(), is_folder=True) as journal:
        store = DraftStore(journal)
        if not journal.is_finished:
            prepared = asyncio.run(_make_all(job, journal, store, on_items))
            write_outputs(job.recipe, job.seed, journal, store, prepared)
        make_folder(job.out)
        journal.finish({name: job.out / name for name in OUTPUTS})
    return SynthesisReport.read(job.out)


async def _make_all(
    job: SynthesisJob, journal: Journal, store: DraftStore, on_items: Callable[[int], object]
) -> Sequence[StepTrace]:
    """Make all items; returns the traces of the steps' preparation before the first item."""
    async with opened_runner(job, journal.folder) as runner:
        runner.worked.update(map(str, as_list(journal.state.get(_WORKED, []), _WORKED)))
        on_items(store.num_items)
        await _make_items(job, journal, store, runner, on_items)
        for step in job.recipe.cross_steps:
            await _choose_across(step, store, runner)
    journal.commit(_state(runner))
    return runner.prepared


@asynccontextmanager
async def opened_runner(job: SynthesisJob, folder: Path) -> AsyncIterator[Runner]:
    """The steps of a job, prepared, with their cache and budget; all writers are closed at the end.

    Args:
        job: The job.
        folder: Folder of the ledger, which records the spent budget.

    Raises:
        ConfigError: If there is no Ray cluster, or the settings do not fit one of its nodes.
        EngineError: If no worker starts.
    """
    if job.on_ray is not None:
        from verl_pivot.synthesis.ray_running import runner_on_ray

        async with runner_on_ray(job, job.on_ray, folder) as spread:
            yield spread
        return
    async with opened_gate(job.gate_settings(folder), job.writers) as gate:
        runner = ItemRunner(job.recipe, job.inputs, job.writers, gate, recipe_seed=job.seed)
        await runner.prepare()
        yield runner


async def _make_items(
    job: SynthesisJob, journal: Journal, store: DraftStore, runner: Runner, on_items: Callable[[int], object]
) -> None:
    """Make the unfinished items, several concurrently; the first error ends all of them, and finished items stay."""
    waiting = ((number, item) for number, item in enumerate(items(job.recipe, job.inputs)) if not store.has(number))
    has_new, is_done = False, asyncio.Event()

    def commit() -> None:
        nonlocal has_new
        if has_new:
            journal.commit(_state(runner))
            has_new = False

    async def work() -> None:
        nonlocal has_new
        for number, item in waiting:  # all workers share the iterator
            drafts = await runner.run(item)
            store.add(number, drafts, is_cut_short=is_cut_short(drafts))
            has_new = True
            on_items(1)

    async def work_all() -> None:
        await all_at_once(work() for _ in range(job.concurrency))
        is_done.set()

    async def commit_regularly() -> None:
        while not is_done.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(is_done.wait(), _COMMIT_SECONDS)
            commit()

    try:
        await all_at_once([work_all(), commit_regularly()])
    finally:
        commit()


def _state(runner: Runner) -> JsonObject:
    """State of a run for its journal, so that a resumed run rejects what an uninterrupted one would reject."""
    return {_WORKED: [*sorted(runner.worked)]}


def is_cut_short(drafts: Iterable[Draft]) -> bool:
    """Whether the budget did not cover all of an item."""
    return any(draft.finding is not None and draft.finding.reason == OUT_OF_BUDGET for draft in drafts)


async def _choose_across(step: RecipeStep, store: DraftStore, runner: Runner) -> None:
    """Run a step that chooses on each group of drafts across items, and record its decisions."""
    for group in store.groups():
        name = group[0].draft.group or group[0].draft.item
        left = await runner.choose(step, name, [each.draft for each in group])
        for place, draft in zip(group, left, strict=True):
            store.choose(place, draft)
