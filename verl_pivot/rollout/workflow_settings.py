"""WorkflowSettings: the section `pivot.rollout.workflows` of the launch command, checked."""

from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.rollout.workflow_memory import MemoryRule
from verl_pivot.validation import Options

SECTION = "pivot.rollout.workflows"
STATE = "workflows"
"""Name of the state beside the checkpoints, which holds for each step the workflows of its successes."""


class WorkflowSettings(Options):
    """Keys of `pivot.rollout.workflows`, which configs/method/tool_rollout.yaml explains to users."""

    file: str | None = None
    """Path of a file of workflows with which the memory begins; None: it begins empty."""
    every_steps: Annotated[int, Field(ge=1)] | None = None
    """Number of training steps after which new successes join the memory; None: the memory stays as in the file."""
    max_tokens: Annotated[int, Field(ge=64)] = 1024
    """Most tokens of the workflows in a prompt."""
    per_template: Annotated[int, Field(ge=1)] = 2
    """Most workflows that the memory keeps of one site with the same tools and names of arguments in the same order."""
    max_workflows: Annotated[int, Field(ge=1)] = 500
    """Most workflows that the memory keeps in total; the oldest are dropped first."""
    min_score: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Score from which a rollout counts as a success."""
    validation: Literal["with", "without", "both"] = "with"
    """Which validation rollouts see workflows. with: all. without: none. both: the first of a prompt, the third, ..."""

    @property
    def is_on(self) -> bool:
        return self.file is not None or self.every_steps is not None

    @property
    def rule(self) -> MemoryRule:
        return MemoryRule(per_template=self.per_template, max_workflows=self.max_workflows)

    def shows(self, *, is_validation: bool, session: int) -> bool:
        """Whether a rollout sees workflows.

        Args:
            is_validation: Whether the rollout is for validation.
            session: Number of the rollout among those of its prompt, from 0.
        """
        if not is_validation or self.validation == "with":
            return True
        return self.validation == "both" and session % 2 == 0
