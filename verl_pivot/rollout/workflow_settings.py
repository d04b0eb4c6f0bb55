"""WorkflowSettings: the section `pivot.rollout.workflows` of the launch command, checked."""

from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.rollout.workflow_memory import MemoryRule
from verl_pivot.validation import Options

SECTION = "pivot.rollout.workflows"
STATE = "workflows"
"""Name of the state beside the checkpoints: for each step the workflows that its successes gave."""


class WorkflowSettings(Options):
    """Keys of `pivot.rollout.workflows`, which configs/method/tool_rollout.yaml explains to users."""

    file: str | None = None
    """Path of workflows that the memory begins with; None: it begins empty."""
    every_steps: Annotated[int, Field(ge=1)] | None = None
    """Training steps after which the successes since then join the memory; None: it stays as the file has it."""
    max_tokens: Annotated[int, Field(ge=64)] = 1024
    """Most tokens of the workflows in a prompt."""
    per_template: Annotated[int, Field(ge=1)] = 2
    """Workflows with the same tools and arguments in the same order that the memory keeps, within a site."""
    max_workflows: Annotated[int, Field(ge=1)] = 500
    """Workflows that it keeps in all; the oldest go first."""
    min_score: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Score from which a rollout counts as a success."""
    validation: Literal["with", "without", "both"] = "with"
    """Which rollouts of validation see workflows; both: every other one of a prompt, beginning with the first."""

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
