"""trajectories.jsonl and FilterRules -> which trajectories stay, and why each of the others goes."""

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
    """Passes items on and shows how far they are."""

    def __call__(self, items: Iterable[T], doing: str, total: int | None) -> Iterable[T]: ...


def without_progress(items: Iterable[T], doing: str, total: int | None) -> Iterable[T]:
    """A `Track` that shows nothing."""
    return items


class Judged(NamedTuple):
    """One trajectory after every filter that judges alone, up to the first that drops it."""

    id: str
    dropped_by: int
    """Step, -1: none."""
    finding: Finding | None
    features: tuple[object, ...]
    """[num_dataset_filters reached]"""


@dataclass(slots=True, kw_only=True)
class StepOutcome:
    """What one filter did."""

    label: str
    num_dropped: int = 0
    num_by_reason: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    """[reason] the first trajectory, with its detail."""
    note: str = ""
    facts: JsonObject = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOutcome:
    """All decisions, in the order of the file."""

    ids: Sequence[str]
    """[num_trajectories]"""
    dropped_by: Sequence[int]
    """[num_trajectories] step, -1: kept."""
    findings: dict[int, Finding]
    """[position] of those that go."""
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

    The file is read once; of each trajectory its id, its finding and the features of the filters that compare them all
    are held.

    Args:
        path: What `verl-pivot import` wrote.
        rules: Which filters, in which order.
        profile: What was measured of the file; None: nothing.
        workers: Processes; the outcome is the same for any number.
        track: Shows progress.
        total: Trajectories of the file, for the progress.

    Raises:
        DataError: If a line is no trajectory.
        ConfigError: If a filter needs a profile and there is none.
    """
    filters = filters_of(rules)
    for label, one in zip(rules.labels, filters, strict=True):
        if isinstance(one, DatasetFilter) and one.needs_profile:
            require_profile(profile, label)
    table = _Table(num_features=sum(isinstance(one, DatasetFilter) for one in filters))
    judged = (row for chunk in _judged(path, rules, workers) for row in chunk)
    for row in track(judged, "judging", total):
        table.add(row)
    return _decided(table, rules, profile, track)


def _judged(path: Path, rules: FilterRules, workers: int) -> Iterator[list[Judged]]:
    chunks = in_chunks(read_rows(path))
    yield from map_in_order(partial(judge, rules), chunks, workers=workers, prepare=partial(filters_of, rules))


def judge(rules: FilterRules, rows: Sequence[RawRow]) -> list[Judged]:
    """[num_rows] what the filters that judge alone say, and the features that the others ask for."""
    return [_judge(rules, row) for row in rows]


def _judge(rules: FilterRules, row: RawRow) -> Judged:
    trajectory = read_trajectory(row)
    features: list[object] = []
    for number, one in enumerate(filters_of(rules)):
        if isinstance(one, DatasetFilter):
            features.append(one.feature(trajectory))
        elif (finding := one.judge(trajectory)) is not None:
            return Judged(trajectory.id, number, finding, tuple(features))
    return Judged(trajectory.id, _KEPT, None, tuple(features))


class _Table:
    """Columns, since there may be very many rows."""

    def __init__(self, num_features: int) -> None:
        self.ids: list[str] = []
        self.dropped_by = array("h")
        self.findings: dict[int, Finding] = {}
        self.features: list[list[object]] = [[] for _ in range(num_features)]
        """[num_dataset_filters][num_trajectories]; None for one that was dropped before."""

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
    for number, one in track(list(enumerate(filters)), "deciding", len(filters)):
        if isinstance(one, TrajectoryFilter):
            steps[number].facts = one.facts()
            continue
        column = next(columns)
        # Those that a filter before this one dropped are no part of the file to it.
        alive = [at for at, by in enumerate(table.dropped_by) if by == _KEPT or by > number]
        ruling = one.decide([table.ids[at] for at in alive], [column[at] for at in alive], profile)
        column.clear()
        steps[number].note, steps[number].facts, steps[number].charts = ruling.note, ruling.facts, ruling.charts
        for position, finding in ruling.dropped.items():
            table.findings[alive[position]] = finding
            table.dropped_by[alive[position]] = number
    for position in sorted(table.findings):
        _count(steps[table.dropped_by[position]], table.ids[position], table.findings[position])
    return FilterOutcome(ids=table.ids, dropped_by=table.dropped_by, findings=table.findings, steps=tuple(steps))


def _count(step: StepOutcome, identity: str, finding: Finding) -> None:
    step.num_dropped += 1
    step.num_by_reason[finding.reason] = step.num_by_reason.get(finding.reason, 0) + 1
    step.examples.setdefault(finding.reason, f"{identity}: {finding.detail}")
