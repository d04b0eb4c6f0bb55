"""TrainingWorkflows: successes of a training -> the workflows that its later steps see, also after a resume."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from verl_pivot.data.step_state import StepState, state_path
from verl_pivot.rollout.workflow_files import read_workflows
from verl_pivot.rollout.workflow_memory import SucceededRollout, WorkflowMemory, workflows_by_rule
from verl_pivot.rollout.workflow_ranking import WorkflowRanking
from verl_pivot.rollout.workflow_settings import STATE, WorkflowSettings
from verl_pivot.rollout.workflows import Workflow, as_json, of_json

_DIGITS = 9


class _FoundWorkflows(NamedTuple):
    """Workflows of the successes of one batch."""

    step: int
    workflows: tuple[Workflow, ...]


class TrainingWorkflows:
    """The memory of one training, which the trainer's process holds.

    Every `every_steps` steps, the workflows of the successes since the last time join the memory, so that its version
    follows from the number of finished steps. A resumed training reads them from the state beside its checkpoints.
    """

    def __init__(self, settings: WorkflowSettings, local_dir: str) -> None:
        """Read the file of workflows and the state.

        Args:
            settings: The section `pivot.rollout.workflows`.
            local_dir: `trainer.default_local_dir`, where the state is kept if the memory grows.

        Raises:
            DataError: If the file of workflows cannot be read.
            ConfigError: If the state cannot be kept.
        """
        self._settings = settings
        given = () if settings.file is None else read_workflows(Path(settings.file))
        self._memory = WorkflowMemory(workflows=WorkflowMemory().with_found(given, settings.rule).workflows)
        self._ranking = WorkflowRanking(self._memory.workflows, 0)
        self._state = None if settings.every_steps is None else StepState(state_path(local_dir, STATE))
        self._waiting: list[_FoundWorkflows] = []
        """Workflows that are not in the memory yet, in the order of their steps."""
        if self._state is not None:
            for name in self._state.names():
                entry = self._state.read(name)
                assert entry is not None, name
                self._waiting.append(_FoundWorkflows(int(name), of_json(entry.value)))

    def ranking(self, step: int, *, is_validation: bool) -> WorkflowRanking:
        """The workflows that are shown to rollouts that begin now.

        Args:
            step: Training step of the rollouts.
            is_validation: Whether they are for validation, which comes after the update of the step.
        """
        done = step if is_validation else step - 1
        every = self._settings.every_steps
        if every is not None:
            self._join(done // every * every, every)
        if self._ranking.version != self._memory.version:
            self._ranking = WorkflowRanking(self._memory.workflows, self._memory.version)
        return self._ranking

    def _join(self, last_step: int, every: int) -> None:
        """Add the workflows found up to a step to the memory, one version for each `every_steps` steps."""
        while self._waiting and self._waiting[0].step <= last_step:
            number = (self._waiting[0].step - 1) // every
            joined = [each for each in self._waiting if (each.step - 1) // every == number and each.step <= last_step]
            self._waiting = [each for each in self._waiting if each not in joined]
            found = [workflow for each in joined for workflow in each.workflows]
            self._memory = self._memory.with_found(found, self._settings.rule)

    def observe(self, step: int, rollouts: Sequence[SucceededRollout]) -> None:
        """Keep the workflows of a step's successes, which a later step will see.

        Raises:
            StateError: If the state cannot be written.
        """
        if self._state is None:
            return
        found = WorkflowMemory().with_found(workflows_by_rule(rollouts), self._settings.rule).workflows
        if not found:
            return
        name = f"{step:0{_DIGITS}d}"
        before = self._state.read(name)
        earlier = () if before is None else of_json(before.value)
        version = 0 if before is None else before.version
        self._state.write(name, as_json([*earlier, *found]), step=step, version=version)
        self._waiting.append(_FoundWorkflows(step, found))

    @property
    def num_known(self) -> int:
        """Number of workflows in the memory."""
        return len(self._memory.workflows)
