"""Drafts of a run -> trajectories.jsonl, pairs.jsonl, tasks.parquet, rejected.jsonl, report.json and a picture."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from verl_pivot.data.journal import Journal
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.data.turns import PROVENANCE
from verl_pivot.quality.contract import Chart, Finding
from verl_pivot.quality.filtering import FilterOutcome, filter_trajectories
from verl_pivot.quality.plots import draw_counts
from verl_pivot.quality.profile_totals import ProfileTotals, TrajectoryTotals
from verl_pivot.synthesis.draft_store import DraftStore
from verl_pivot.synthesis.drafts import PASS_RATE, Draft, StepTrace, trace_as_dict
from verl_pivot.synthesis.recipes import Recipe
from verl_pivot.synthesis.task_rows import write_tasks
from verl_pivot.types import Json, JsonObject, Trajectory

_TRAJECTORIES, _PAIRS, _REJECTED = "trajectories.jsonl", "pairs.jsonl", "rejected.jsonl"
_TASKS, _REPORT, _PICTURE = "tasks.parquet", "report.json", "synthesis.png"
OUTPUTS = (_TRAJECTORIES, _PAIRS, _REJECTED, _TASKS, _REPORT, _PICTURE)
"""Names of the files of an output folder; a file without rows is not written."""
_READING = "reading"
"""Name in place of a step for rows that are rejected because they cannot be read."""
_FILTER = "quality: {label}"
_TASK_LINES = "tasks.jsonl"
_CANDIDATES = "candidates.jsonl"
_BINS = 10


@dataclass(slots=True, kw_only=True)
class SynthesisReport:
    """Counts of a run: num_drafts = num_kept + the sum of `rejected`."""

    recipe: str
    steps: list[Json]
    """Steps of the recipe, including the changes by `--set`."""
    seed: int
    num_items: int = 0
    """Number of items (rows, lines or numbers) that the recipe worked on."""
    num_drafts: int = 0
    """Number of drafts that were made from the items, at least one from each."""
    num_kept: int = 0
    num_trajectories: int = 0
    num_pairs: int = 0
    num_tasks: int = 0
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)
    """{step: {reason: number of drafts}}"""
    examples: dict[str, str] = field(default_factory=dict)
    """{reason: id and detail of the first draft that was rejected for this reason}"""
    asked: dict[str, dict[str, int]] = field(default_factory=dict)
    """{step: number of its calls and tokens, including answers from the cache}"""
    models: list[str] = field(default_factory=list)
    pass_rates: list[int] = field(default_factory=lambda: [0] * _BINS)
    """[10] number of kept drafts by the policy's pass rate: below 0.1, below 0.2, ..., up to 1."""

    @property
    def num_rejected(self) -> int:
        return sum(sum(reasons.values()) for reasons in self.rejected.values())

    def reject(self, draft: Draft, step: str, finding: Finding) -> None:
        """Count a rejected draft."""
        reasons = self.rejected.setdefault(step, {})
        reasons[finding.reason] = reasons.get(finding.reason, 0) + 1
        self.examples.setdefault(finding.reason, f"{draft.id}: {finding.detail}")

    @classmethod
    def read(cls, out: Path) -> Self:
        """The report of a finished run."""
        return cls(**json.loads((out / _REPORT).read_text(encoding="utf-8")))


def is_finished(out: Path) -> bool:
    """Whether a folder holds the output of a run that has ended."""
    return (out / _REPORT).is_file()


def write_outputs(
    recipe: Recipe, seed: int, journal: Journal, store: DraftStore, prepared: Iterable[StepTrace]
) -> None:
    """Write all output files into the journal.

    Memory holds one item at a time, and for each trajectory the values that the filters need.

    Args:
        recipe: Recipe of the run, with its filters.
        seed: Seed of the run.
        journal: Journal that gets the files.
        store: Store with the drafts.
        prepared: Traces of the steps' preparation before the first draft.

    Raises:
        DataError: If a filter cannot decide, such as for shares that no selection can reach.
    """
    folder = journal.folder
    outcome = None if recipe.filters is None else _filtered(recipe, folder, store)
    report = SynthesisReport(recipe=recipe.name, steps=list(recipe.content), seed=seed, num_items=store.num_items)  # type: ignore[arg-type]
    with ExitStack() as files:
        opened: dict[str, BinaryIO] = {
            name: files.enter_context((folder / name).open("wb")) for name in (*OUTPUTS[:3], _TASK_LINES)
        }
        writer = _Writer(opened, recipe, report)
        writer.count_answers(prepared)
        for draft, finding, step in _decided(store, outcome):
            writer.add(draft, finding, step)
    report.rejected = {label: report.rejected[label] for label in _labels(recipe) if label in report.rejected}
    write_tasks(folder / _TASK_LINES, folder / _TASKS)
    (folder / _REPORT).write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")
    _draw(report, outcome, folder / _PICTURE)


def _labels(recipe: Recipe) -> list[str]:
    """Labels of everything that rejects drafts (reading, steps, filters), in the order of execution."""
    filters = () if recipe.filters is None else recipe.filters.labels
    return [_READING, *(step.label for step in recipe.steps), *(_FILTER.format(label=label) for label in filters)]


def _candidates(store: DraftStore) -> Iterator[tuple[Draft, Trajectory]]:
    for draft in store.drafts():
        if draft.finding is None and draft.trajectory is not None:
            yield draft, draft.trajectory


def _filtered(recipe: Recipe, folder: Path, store: DraftStore) -> FilterOutcome | None:
    """Decisions of the filters about the trajectories that the steps kept; None if there are no trajectories."""
    assert recipe.filters is not None, recipe.name
    totals: dict[str, TrajectoryTotals] = {}
    num_candidates = 0
    with (folder / _CANDIDATES).open("wb") as file:
        for draft, trajectory in _candidates(store):
            num_candidates += 1
            file.write(encode_json(trajectory_as_dict(trajectory)).encode() + b"\n")
            if isinstance(rate := draft.values.get(PASS_RATE), int | float):
                totals[trajectory.id] = _totals(rate)
    if not num_candidates:
        return None
    profile: ProfileTotals | None = totals if len(totals) == num_candidates else None
    return filter_trajectories(folder / _CANDIDATES, recipe.filters, profile=profile, total=num_candidates)


def _totals(pass_rate: float) -> TrajectoryTotals:
    """A task's pass rate in the form of a profile with one turn."""
    exact = Fraction(pass_rate)
    return TrajectoryTotals(num_turns=1, num_decided_turns=1, reward_mean_sum=exact, pass_rate_sum=exact)


class _Decided(NamedTuple):
    draft: Draft
    finding: Finding | None
    step: str
    """Label of the step or filter that rejected the draft; "" if it is kept."""


def _decided(store: DraftStore, outcome: FilterOutcome | None) -> Iterator[_Decided]:
    """Every draft, with the reason for its rejection if it is rejected."""
    position = -1
    for draft in store.drafts():
        if draft.finding is not None:
            yield _Decided(draft, draft.finding, draft.traces[-1].step if draft.traces else _READING)
            continue
        position += outcome is not None and draft.trajectory is not None
        if outcome is None or draft.trajectory is None or position not in outcome.findings:
            yield _Decided(draft, None, "")
        else:
            label = outcome.steps[outcome.dropped_by[position]].label
            yield _Decided(draft, outcome.findings[position], _FILTER.format(label=label))


class _Writer:
    """Writes drafts to the files of a run, and counts them."""

    def __init__(self, files: dict[str, BinaryIO], recipe: Recipe, report: SynthesisReport) -> None:
        self._files, self._recipe, self._report = files, recipe, report
        self._item = ""
        self._counted: set[tuple[str, str]] = set()
        """{(step, made_from)} of the current item whose answers are already counted."""
        self._across = {step.label for step in recipe.cross_steps}
        self._counted_across: set[tuple[str, str]] = set()
        """{(step, made_from)} of steps across items whose answers are already counted."""
        self._tasks: set[bytes] = set()
        """Digests of the tasks that are already written."""

    def add(self, draft: Draft, finding: Finding | None, step: str) -> None:
        if draft.item != self._item:
            self._item = draft.item
            self._counted.clear()
        report = self._report
        report.num_drafts += 1
        self.count_answers(draft.traces)
        if finding is not None:
            report.reject(draft, step, finding)
            self._write(_REJECTED, self._rejected_row(draft, finding, step))
            return
        report.num_kept += 1
        if isinstance(rate := draft.values.get(PASS_RATE), int | float):
            report.pass_rates[min(int(rate * _BINS), _BINS - 1)] += 1
        if draft.trajectory is not None:
            report.num_trajectories += 1
            self._write(_TRAJECTORIES, trajectory_as_dict(self._with_provenance(draft.trajectory, draft)))
        if draft.trajectory is not None and draft.worse is not None:
            report.num_pairs += 1
            pair = {"chosen": draft.trajectory, "rejected": draft.worse}
            sides: JsonObject = {side: trajectory_as_dict(each) for side, each in pair.items()}
            self._write(_PAIRS, {"id": draft.id, **sides, "provenance": self._provenance(draft)})
        if draft.task is not None and (key := _digest(draft.task)) not in self._tasks:
            self._tasks.add(key)
            report.num_tasks += 1
            self._write(_TASK_LINES, {**draft.task, "provenance": encode_json(self._provenance(draft))})

    def _write(self, name: str, row: JsonObject) -> None:
        self._files[name].write(encode_json(row).encode() + b"\n")

    def count_answers(self, traces: Iterable[StepTrace]) -> None:
        """Count the answers of each run of a step once, although all drafts of the run have a copy of its trace."""
        for trace in traces:
            counted = self._counted_across if trace.step in self._across else self._counted
            if (trace.step, trace.made_from) in counted or not trace.num_calls:
                continue
            counted.add((trace.step, trace.made_from))
            counts = self._report.asked.setdefault(trace.step, dict.fromkeys(_COUNTED, 0))
            for name in _COUNTED:
                counts[name] += getattr(trace, name)
            self._report.models += [name for name in trace.models if name not in self._report.models]

    def _provenance(self, draft: Draft) -> JsonObject:
        """Provenance of a row: recipe, seed, and the traces and values of the steps that made and checked it."""
        return {
            "recipe": self._recipe.name,
            "seed": self._report.seed,
            "draft": draft.id,
            "steps": [trace_as_dict(trace) for trace in draft.traces],
            "values": draft.values,
        }

    def _with_provenance(self, trajectory: Trajectory, draft: Draft) -> Trajectory:
        known = trajectory.metadata.get(PROVENANCE)
        known = known if isinstance(known, dict) else {"split_by": draft.item}
        metadata = {**trajectory.metadata, PROVENANCE: {**known, "synthesis": self._provenance(draft)}}
        return replace(trajectory, metadata=metadata)

    def _rejected_row(self, draft: Draft, finding: Finding, step: str) -> JsonObject:
        trajectory = None if draft.trajectory is None else trajectory_as_dict(draft.trajectory)
        return {
            "id": draft.id, "step": step, "reason": finding.reason, "detail": finding.detail,
            "provenance": self._provenance(draft), "trajectory": trajectory, "task": draft.task,
        }  # fmt: skip


def _digest(task: JsonObject) -> bytes:
    return blake2b(encode_json(task, sort_keys=True).encode(), digest_size=16).digest()


_COUNTED = ("num_calls", "num_prompt_tokens", "num_completion_tokens")


def _draw(report: SynthesisReport, outcome: FilterOutcome | None, path: Path) -> None:
    counts = {"kept": report.num_kept}
    counts |= {f"rejected by {step}": sum(reasons.values()) for step, reasons in report.rejected.items()}
    charts = [chart for step in (outcome.steps if outcome else ()) for chart in step.charts]
    if any(report.pass_rates):
        labels = tuple(f"{number / _BINS:g}" for number in range(_BINS))
        heights = tuple(map(float, report.pass_rates))
        charts.append(
            Chart(title="pass rate of the policy at tasks of kept drafts", labels=labels, series={"drafts": heights})
        )
    draw_counts(counts, "drafts", charts, path)
