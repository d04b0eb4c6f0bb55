"""Rows of a step and prompts of the next -> workflows that are kept, and those that each prompt is to show."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from omegaconf import DictConfig

from verl_pivot.errors import StateError
from verl_pivot.resampling.sampled_rows import SampledRow
from verl_pivot.rollout.settings import parse_settings
from verl_pivot.rollout.workflow_memory import SucceededRollout
from verl_pivot.rollout.workflows import task_of

if TYPE_CHECKING:
    from verl_pivot.rollout.training_workflows import TrainingWorkflows

logger = logging.getLogger(__name__)


class StepWorkflows:
    """The workflows of one training, shared by the agent loop manager and the replay buffer in its process."""

    def __init__(self, memory: "TrainingWorkflows", min_score: float) -> None:
        self._memory = memory
        self._min_score = min_score

    def columns(
        self, prompts: Sequence[Sequence[Mapping[str, Any]]], rows: Sequence[Mapping[str, Any]], step: int,
        *, is_validation: bool,
    ) -> list[str]:  # fmt: skip
        """[num_prompts] values of the column that tells all rollouts of a prompt their workflows.

        Args:
            prompts: [num_prompts] messages of each prompt.
            rows: [num_prompts] columns of each row.
            step: Training step of the rollouts.
            is_validation: Whether they are for validation.
        """
        ranking = self._memory.ranking(step, is_validation=is_validation)
        tasks = [task_of(prompt, row) for prompt, row in zip(prompts, rows, strict=True)]
        return [msgspec.json.encode(ranking.ranked(task)).decode() for task in tasks]

    def observe(self, step: int, rows: Sequence[SampledRow]) -> None:
        """Keep the workflows of a step's successes; if they cannot be written, they are lost, and this is logged."""
        succeeded = [
            SucceededRollout(task=row.workflow_task, calls=row.record.calls, source=f"step {step}")
            for row in rows
            if row.workflow_task is not None
            and row.record is not None
            and not row.record.is_masked
            and row.score is not None
            and row.score >= self._min_score
        ]
        try:
            self._memory.observe(step, succeeded)
        except StateError:
            logger.exception("the workflows of step %d are lost", step)

    def metrics(self) -> dict[str, float]:
        return {"workflows/known": float(self._memory.num_known)}


_training: list[StepWorkflows] = []
"""[0 or 1] workflows of the training in this process, which holds its replay buffer and its manager of agent loops."""


def start_step_workflows(config: DictConfig) -> StepWorkflows | None:
    """The workflows of the training that begins in this process; None if `pivot.rollout.workflows` is off.

    Args:
        config: verl's whole config.

    Raises:
        DataError: If the file of workflows cannot be read.
        ConfigError: If a setting is wrong, the state cannot be kept, or the extra `search` is missing.
    """
    _training.clear()
    if "rollout" not in config.pivot or not (settings := parse_settings(config).workflows).is_on:
        return None
    from verl_pivot.rollout.training_workflows import TrainingWorkflows  # needs the extra `search`

    memory = TrainingWorkflows(settings, str(config.trainer.default_local_dir))
    _training.append(StepWorkflows(memory, settings.min_score))
    return _training[0]


def step_workflows() -> StepWorkflows | None:
    """The workflows of the training in this process; None if there are none."""
    return _training[0] if _training else None
