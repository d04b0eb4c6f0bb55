"""SpreadRunner: items -> their drafts, by the workers of a cluster, as one process would make them."""

from collections.abc import Sequence

from verl_pivot.errors import UserCodeError
from verl_pivot.synthesis.drafts import Draft, StepTrace
from verl_pivot.synthesis.item_steps import ItemRunner
from verl_pivot.synthesis.item_worker import ItemTask, MadeItem
from verl_pivot.synthesis.recipes import RecipeStep
from verl_pivot.workers.worker_pool import WorkerPool


class SpreadRunner:
    """The steps of a job by workers on a cluster; steps across items work in this process."""

    def __init__(self, here: ItemRunner, workers: WorkerPool[ItemTask, MadeItem]) -> None:
        self._here, self._workers = here, workers

    @property
    def prepared(self) -> Sequence[StepTrace]:
        return self._here.prepared

    async def run(self, item: Draft) -> Sequence[Draft]:
        """All drafts of an item, by a worker.

        Code of the user that fails ends the run as long as it has not worked in any process, and else rejects a draft.
        """
        while True:
            task = ItemTask(item=item, worked=frozenset(self._here.worked))
            try:
                made = await self._workers.work(task, group=item.id, name=f"item {item.id}")
            except UserCodeError:
                if self._here.worked <= task.worked:
                    raise
                continue  # it has worked elsewhere meanwhile
            self._here.worked |= made.worked
            return made.drafts

    async def choose(self, step: RecipeStep, group: str, rivals: Sequence[Draft]) -> Sequence[Draft]:
        return await self._here.choose(step, group, rivals)
