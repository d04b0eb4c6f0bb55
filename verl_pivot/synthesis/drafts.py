"""Draft: a trajectory or a task in the making, with everything that made and checked it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from verl_pivot.data.json_values import as_list, as_object
from verl_pivot.data.trajectories import parse_trajectory, trajectory_as_dict
from verl_pivot.quality.contract import Finding, shortened
from verl_pivot.types import Json, JsonObject, Trajectory

PASS_RATE = "pass_rate"
"""Value of a draft that holds the policy's share of successes at its task, by which the filter `difficulty` mixes."""


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
    """Id of the draft that the step got, or name of the group that it chose among.

    With the recipe's seed and the label it gives every seed of the step.
    """
    models: tuple[str, ...] = ()
    """Models that were asked."""
    num_calls: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    score: float | None = None
    """Score of a check; None if it was undecided, and for other kinds."""
    reason: str = ""
    """Reason of a check's verdict."""

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_completion_tokens


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
            detail: Explanation for people; a long one loses its middle, and half characters are written as escapes.
        """
        told = shortened(detail.encode(errors="backslashreplace").decode())
        return replace(self, finding=Finding(reason=reason, detail=told))

    def with_values(self, **values: Any) -> "Draft":
        """This draft with more values."""
        return replace(self, values={**self.values, **values})


def distinct_traces(drafts: Iterable[Draft]) -> list[StepTrace]:
    """Each run of a step over drafts once, although all that it made carry its trace."""
    found = {(trace.step, trace.made_from): trace for draft in drafts for trace in draft.traces}
    return list(found.values())


def trace_as_dict(trace: StepTrace) -> JsonObject:
    """The trace as journals and provenances hold it."""
    return {**asdict(trace), "models": list(trace.models)}


def draft_as_dict(draft: Draft) -> JsonObject:
    """The draft as the journal of a run holds it."""
    finding = draft.finding
    return {
        "id": draft.id,
        "trajectory": None if draft.trajectory is None else trajectory_as_dict(draft.trajectory),
        "worse": None if draft.worse is None else trajectory_as_dict(draft.worse),
        "task": draft.task,
        "group": draft.group,
        "values": draft.values,
        "traces": [trace_as_dict(trace) for trace in draft.traces],
        "finding": None if finding is None else {"reason": finding.reason, "detail": finding.detail},
    }


def parse_draft(fields: JsonObject) -> Draft:
    """The inverse of `draft_as_dict`."""
    finding, task = fields["finding"], fields["task"]
    return Draft(
        id=str(fields["id"]),
        trajectory=None if fields["trajectory"] is None else parse_trajectory(fields["trajectory"]),
        worse=None if fields["worse"] is None else parse_trajectory(fields["worse"]),
        task=None if task is None else as_object(task, "task"),
        group=str(fields["group"]),
        values=as_object(fields["values"], "values"),
        traces=tuple(map(parse_trace, as_list(fields["traces"], "traces"))),
        finding=None if finding is None else Finding(**as_object(finding, "finding")),  # type: ignore[arg-type]  # texts
    )


def parse_trace(value: Json) -> StepTrace:
    """The inverse of `trace_as_dict`."""
    fields: dict[str, Any] = dict(as_object(value, "a trace"))
    return StepTrace(**{**fields, "kind": StepKind(fields["kind"]), "models": tuple(fields["models"])})
