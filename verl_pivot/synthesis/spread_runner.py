"""SpreadRunner: items -> their drafts, made by the workers of a cluster; they are the same as those of one process."""

from collections.abc import Sequence

from verl_pivot.errors import UserCodeError
from verl_pivot.synthesis.drafts import Draft, StepTrace
from verl_pivot.synthesis.item_steps import ItemRunner
from verl_pivot.synthesis.item_worker import ItemTask, MadeItem
from verl_pivot.synthesis.recipes import RecipeStep
from verl_pivot.workers.worker_pool import WorkerPool


class SpreadRunner:
    """Runs the steps of a job on the workers of a cluster; steps across items run in this process."""

    def __init__(self, here: ItemRunner, workers: WorkerPool[ItemTask, MadeItem]) -> None:
        self._here, self._workers = here, workers

    @property
    def prepared(self) -> Sequence[StepTrace]:
        return self._here.prepared

    @property
    def worked(self) -> set[str]:
        return self._here.worked

    async def run(self, item: Draft) -> Sequence[Draft]:
        """All drafts of an item, made by a worker.

        If the user's own code fails, the run ends as long as the code has not worked in any process; later, the draft
        is rejected.
        """
        while True:
            task = ItemTask(item=item, worked=frozenset(self._here.worked))
            try:
                made = await self._workers.work(task, group=item.id, name=f"item {item.id}")
            except UserCodeError:
                if self._here.worked <= task.worked:
                    raise
                continue  # the code has worked in another process meanwhile
            self._here.worked |= made.worked
            return made.drafts

    async def choose(self, step: RecipeStep, group: str, rivals: Sequence[Draft]) -> Sequence[Draft]:
        return await self._here.choose(step, group, rivals)
