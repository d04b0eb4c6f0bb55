"""Draft: an unfinished trajectory or task, with a trace of each step that made or checked it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from verl_pivot.data.json_values import as_list, as_object
from verl_pivot.data.trajectories import parse_trajectory, trajectory_as_dict
from verl_pivot.quality.contract import Finding, shortened
from verl_pivot.types import Json, JsonObject, Trajectory

PASS_RATE = "pass_rate"
"""Key of the draft value with the policy's success rate at the task, which the filter `difficulty` uses."""

QUESTION_REFUSED = "question_refused"
"""Rejection reason of drafts about which an endpoint refused a question."""


class StepKind(StrEnum):
    MAKE = "make"
    CHECK = "check"
    CHOOSE = "choose"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """Record of what one step did to a draft. The runner writes it, not the step."""

    step: str
    """Label of the step in its recipe: its name, with a number if the recipe uses the step again."""
    kind: StepKind
    made_from: str
    """Id of the draft that the step got, or name of the group from which the step chose.

    All seeds of the step derive from it, the recipe's seed and the label.
    """
    models: tuple[str, ...] = ()
    """Names of the models that were asked."""
    num_calls: int = 0
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    score: float | None = None
    """Score of a check; None if the check is undecided, and for other kinds of steps."""
    reason: str = ""
    """Reason of a check's verdict."""

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One unfinished row. Steps never change a draft; they return new drafts.

    Example:
        Draft(id="tasks-1", task={"prompt": [{"role": "user", "content": "Two packs of tea."}], "metadata": "{}"})
    """

    id: str
    """Id of the item, and the numbers of `made` since then: "tasks-1/0/2". It is unique within a run."""
    trajectory: Trajectory | None = None
    """Trajectory that becomes a line of trajectories.jsonl."""
    worse: Trajectory | None = None
    """Rejected trajectory of a preference pair; with the chosen `trajectory` it becomes a line of pairs.jsonl."""
    task: JsonObject | None = None
    """Columns of a row as training reads them (`prompt`, `metadata`, ...); becomes a row of tasks.parquet."""
    group: str = ""
    """Name of the group in which choosing steps compare drafts; "" means the drafts of the same item."""
    values: JsonObject = field(default_factory=dict)
    """Values that steps pass on to later steps; they are kept in the provenance of the row."""
    traces: tuple[StepTrace, ...] = ()
    finding: Finding | None = None
    """Reason for the rejection; None if the draft is not rejected. Later steps do not get a rejected draft."""

    @property
    def item(self) -> str:
        """Id of the input row, trajectory or number from which the draft was made."""
        return self.id.partition("/")[0]

    def made(self, number: int, **changes: Any) -> "Draft":
        """A draft that a step made from this one.

        Args:
            number: Number of the new draft among those that the step made from this one.
            changes: Fields of the new draft that differ.
        """
        return replace(self, id=f"{self.id}/{number}", **changes)

    def rejected(self, reason: str, detail: str = "") -> "Draft":
        """This draft, rejected, so that it is written to rejected.jsonl.

        Args:
            reason: Short code in snake_case, which the report counts.
            detail: Explanation for the user; the middle of a long text is cut out, and invalid Unicode is escaped.
        """
        told = shortened(detail.encode(errors="backslashreplace").decode())
        return replace(self, finding=Finding(reason=reason, detail=told))

    def with_values(self, **values: Any) -> "Draft":
        """This draft with more values."""
        return replace(self, values={**self.values, **values})


def distinct_traces(drafts: Iterable[Draft]) -> list[StepTrace]:
    """The trace of each run of a step, once, although all drafts that the run made have a copy of it."""
    found = {(trace.step, trace.made_from): trace for draft in drafts for trace in draft.traces}
    return list(found.values())


def trace_as_dict(trace: StepTrace) -> JsonObject:
    """The trace in the format of journals and provenances."""
    return {**asdict(trace), "models": list(trace.models)}


def draft_as_dict(draft: Draft) -> JsonObject:
    """The draft in the format of a run's journal."""
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
        finding=None if finding is None else Finding(**as_object(finding, "finding")),  # type: ignore[arg-type]  # str
    )


def parse_trace(value: Json) -> StepTrace:
    """The inverse of `trace_as_dict`."""
    fields: dict[str, Any] = dict(as_object(value, "a trace"))
    return StepTrace(**{**fields, "kind": StepKind(fields["kind"]), "models": tuple(fields["models"])})
