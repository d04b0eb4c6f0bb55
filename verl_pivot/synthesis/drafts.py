"""Draft: a trajectory or a task in the making, with everything that made and checked it."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from verl_pivot.quality.contract import Finding, shortened
from verl_pivot.types import JsonObject, Trajectory


class StepKind(StrEnum):
    MAKE = "make"
    CHECK = "check"
    CHOOSE = "choose"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """What one step did to a draft; the runner writes it, no step has to."""

    step: str
    """Label of the step in its recipe: its name, with a number where it is used again."""
    kind: StepKind
    made_from: str
    """Id of the draft that the step got. With the recipe's seed and the label it gives every seed of the step."""
    models: tuple[str, ...] = ()
    """Models that were asked."""
    num_calls: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    score: float | None = None
    """Score of a check; None if it was undecided, and for other kinds."""
    reason: str = ""
    """Reason of a check's verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One row in the making. Steps never change a draft; they return others.

    Example:
        Draft(id="tasks-1", task={"prompt": [{"role": "user", "content": "Two packs of tea."}], "metadata": "{}"})
    """

    id: str
    """Id of the item, and the path of `made` from there: "tasks-1/0/2". No two drafts of a run share one."""
    trajectory: Trajectory | None = None
    """Becomes a line of trajectories.jsonl."""
    worse: Trajectory | None = None
    """The rejected one of a pair whose chosen one is `trajectory`; both become a line of pairs.jsonl."""
    task: JsonObject | None = None
    """Columns of a row as training reads them (`prompt`, `metadata`, ...); becomes a row of tasks.parquet."""
    group: str = ""
    """Drafts with the same text are compared by steps that choose; "" compares those of one item."""
    values: JsonObject = field(default_factory=dict)
    """What steps leave for later steps; it is kept in the provenance of the row."""
    traces: tuple[StepTrace, ...] = ()
    finding: Finding | None = None
    """Why the draft is rejected; None if it is not. No later step sees a rejected draft."""

    @property
    def item(self) -> str:
        """Id of the row, trajectory or number that the draft descends from."""
        return self.id.partition("/")[0]

    def made(self, number: int, **changes: Any) -> "Draft":
        """A draft that a step made from this one.

        Args:
            number: Its number among those that the step made from this one.
            changes: Fields that differ.
        """
        return replace(self, id=f"{self.id}/{number}", **changes)

    def rejected(self, reason: str, detail: str = "") -> "Draft":
        """This draft as one that goes to rejected.jsonl.

        Args:
            reason: Short code in snake_case, which the report counts.
            detail: Explanation for people; a long one loses its middle.
        """
        return replace(self, finding=Finding(reason=reason, detail=shortened(detail)))

    def with_values(self, **values: Any) -> "Draft":
        """This draft with more values."""
        return replace(self, values={**self.values, **values})
