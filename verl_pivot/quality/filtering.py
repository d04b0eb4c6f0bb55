"""trajectories.jsonl and FilterRules -> which trajectories stay, and why each of the others is dropped."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from verl_pivot.data.files import RawRow, in_chunks, read_rows
from verl_pivot.data.parallel import map_in_order
from verl_pivot.data.trajectories import read_trajectory
from verl_pivot.quality.contract import Chart, DatasetFilter, Finding, TrajectoryFilter, require_profile
from verl_pivot.quality.profile_totals import ProfileTotals
from verl_pivot.quality.rules import FilterRules, filters_of
from verl_pivot.types import JsonObject

_KEPT = -1

T = TypeVar("T")


class Track(Protocol):
    """Function that passes items on and shows the progress."""

    def __call__(self, items: Iterable[T], doing: str, total: int | None) -> Iterable[T]: ...


def without_progress(items: Iterable[T], doing: str, total: int | None) -> Iterable[T]:
    """A `Track` that shows nothing."""
    return items


class Judged(NamedTuple):
    """Result of the filters for one trajectory, up to the first TrajectoryFilter that drops it."""

    id: str
    dropped_by: int
    """Position of the TrajectoryFilter that drops it among all filters, -1: none."""
    finding: Finding | None
    features: tuple[object, ...]
    """[num_dataset_filters before that one] values of `DatasetFilter.feature`."""


@dataclass(slots=True, kw_only=True)
class StepOutcome:
    """What one filter dropped, and what it reports."""

    label: str
    num_dropped: int = 0
    num_by_reason: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    """Id and detail of the first trajectory that was dropped, by reason."""
    note: str = ""
    facts: JsonObject = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOutcome:
    """Outcome for every trajectory, in the order of the file."""

    ids: Sequence[str]
    """[num_trajectories]"""
    dropped_by: Sequence[int]
    """[num_trajectories] position of the filter that dropped it, -1: kept."""
    findings: dict[int, Finding]
    """Findings by position, of the trajectories that are dropped."""
    steps: tuple[StepOutcome, ...]

    @property
    def num_kept(self) -> int:
        return len(self.ids) - len(self.findings)


def filter_trajectories(
    path: Path,
    rules: FilterRules,
    *,
    profile: ProfileTotals | None = None,
    workers: int = 1,
    track: Track = without_progress,
    total: int | None = None,
) -> FilterOutcome:
    """Put every trajectory through the filters, in their order.

    The file is read once. Memory holds the id of each trajectory, its finding, and its features for the filters that
    compare trajectories.

    Args:
        path: File that `verl-pivot import` wrote.
        rules: Filters to run, in order.
        profile: Totals of a profile of the same file; None if there is no profile.
        workers: Number of processes; the outcome is the same for any number.
        track: Shows progress.
        total: Number of trajectories in the file, for the progress.

    Raises:
        DataError: If a line is no trajectory.
        ConfigError: If a filter needs a profile and there is none.
    """
    filters = filters_of(rules)
    for label, each in zip(rules.labels, filters, strict=True):
        if isinstance(each, DatasetFilter) and each.needs_profile:
            require_profile(profile, label)
    table = _Table(num_features=sum(isinstance(each, DatasetFilter) for each in filters))
    judged = (row for chunk in _judged(path, rules, workers) for row in chunk)
    for row in track(judged, "judging", total):
        table.add(row)
    return _decided(table, rules, profile, track)


def _judged(path: Path, rules: FilterRules, workers: int) -> Iterator[list[Judged]]:
    chunks = in_chunks(read_rows(path))
    yield from map_in_order(partial(judge, rules), chunks, workers=workers, prepare=partial(filters_of, rules))


def judge(rules: FilterRules, rows: Sequence[RawRow]) -> list[Judged]:
    """[num_rows] findings of the TrajectoryFilters, and features for the DatasetFilters."""
    return [_judge(rules, row) for row in rows]


def _judge(rules: FilterRules, row: RawRow) -> Judged:
    trajectory = read_trajectory(row)
    features: list[object] = []
    for number, each in enumerate(filters_of(rules)):
        if isinstance(each, DatasetFilter):
            features.append(each.feature(trajectory))
        elif (finding := each.judge(trajectory)) is not None:
            return Judged(trajectory.id, number, finding, tuple(features))
    return Judged(trajectory.id, _KEPT, None, tuple(features))


class _Table:
    """Results for all trajectories, in columns to save memory."""

    def __init__(self, num_features: int) -> None:
        self.ids: list[str] = []
        self.dropped_by = array("h")
        self.findings: dict[int, Finding] = {}
        self.features: list[list[object]] = [[] for _ in range(num_features)]
        """[num_dataset_filters][num_trajectories]; None where an earlier filter dropped the trajectory."""

    def add(self, row: Judged) -> None:
        if row.finding is not None:
            self.findings[len(self.ids)] = row.finding
        self.ids.append(row.id)
        self.dropped_by.append(row.dropped_by)
        for number, column in enumerate(self.features):
            column.append(row.features[number] if number < len(row.features) else None)


def _decided(table: _Table, rules: FilterRules, profile: ProfileTotals | None, track: Track) -> FilterOutcome:
    filters, steps = filters_of(rules), [StepOutcome(label=label) for label in rules.labels]
    columns = iter(table.features)
    for number, each in track(list(enumerate(filters)), "deciding", len(filters)):
        if isinstance(each, TrajectoryFilter):
            steps[number].facts = each.facts()
            continue
        column = next(columns)
        # A filter sees only the trajectories that no earlier filter dropped.
        reached = [at for at, filter_at in enumerate(table.dropped_by) if filter_at == _KEPT or filter_at > number]
        ruling = each.decide([table.ids[at] for at in reached], [column[at] for at in reached], profile)
        column.clear()
        steps[number].note, steps[number].facts, steps[number].charts = ruling.note, ruling.facts, ruling.charts
        for position, finding in ruling.dropped.items():
            table.findings[reached[position]] = finding
            table.dropped_by[reached[position]] = number
    for position in sorted(table.findings):
        _count(steps[table.dropped_by[position]], table.ids[position], table.findings[position])
    return FilterOutcome(ids=table.ids, dropped_by=table.dropped_by, findings=table.findings, steps=tuple(steps))


def _count(step: StepOutcome, identity: str, finding: Finding) -> None:
    step.num_dropped += 1
    step.num_by_reason[finding.reason] = step.num_by_reason.get(finding.reason, 0) + 1
    step.examples.setdefault(finding.reason, f"{identity}: {finding.detail}")
