"""The contract of filters: TrajectoryFilter judges one trajectory alone, DatasetFilter compares all of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeAlias, TypeVar

from pydantic import ConfigDict, Field

from verl_pivot.errors import ConfigError
from verl_pivot.quality.profile_totals import ProfileTotals
from verl_pivot.types import JsonObject, Trajectory
from verl_pivot.validation import Options

Feature = TypeVar("Feature")

Names: TypeAlias = Annotated[tuple[str, ...], Field(strict=False)]
"""List of strings in YAML."""

_MAX_DETAIL_CHARACTERS = 400


class FilterOptions(Options):
    """Base class of every filter's options: unknown options are errors, and no value is converted to another type."""

    model_config = ConfigDict(strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Why a trajectory is dropped.

    Example:
        Finding(reason="unknown_tool", detail="turn 2, refund_all: no tool has this name")
    """

    reason: str
    """Short code in snake_case."""
    detail: str
    """Explanation for people; data that it quotes is cut by `shortened`."""


class TrajectoryFilter(ABC):
    """Filter that judges each trajectory alone, in any process and any order."""

    @abstractmethod
    def judge(self, trajectory: Trajectory) -> Finding | None:
        """The reason to drop this trajectory; None keeps it. Raises only for a bug: an exception stops the run."""

    def facts(self) -> JsonObject:
        """Values for the report, beside the counts of this filter."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Bar chart in the picture of a run, with groups of bars.

    Example:
        Chart(title="difficulty", labels=("easy", "hard"), series={"before": (0.9, 0.1), "after": (0.5, 0.5)})
    """

    title: str
    labels: tuple[str, ...]
    """[num_groups]"""
    series: dict[str, tuple[float, ...]]
    """[num_groups] heights of the bars, by name of the series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """Decision of a DatasetFilter over all trajectories."""

    dropped: dict[int, Finding]
    """{position of a trajectory: why it is dropped}; all others stay."""
    note: str = ""
    """Remark in the printed table, such as the number of clusters."""
    facts: JsonObject = field(default_factory=dict)
    """Values for the report."""
    charts: tuple[Chart, ...] = ()


class DatasetFilter(ABC, Generic[Feature]):
    """Filter that compares all trajectories which the filters before it let pass, by a small feature of each."""

    needs_profile: bool = False

    @abstractmethod
    def feature(self, trajectory: Trajectory) -> Feature:
        """Data that `decide` needs of a trajectory; small, since memory holds the features of all trajectories."""

    @abstractmethod
    def decide(self, ids: Sequence[str], features: Sequence[Feature], profile: ProfileTotals | None) -> Ruling:
        """Decide which trajectories are dropped.

        Args:
            ids: [num_trajectories] in the order of the file; several rows may share one.
            features: [num_trajectories] what `feature` returned.
            profile: Totals of the profile; None if none was given, which never happens with `needs_profile`.
        """


def shortened(value: object) -> str:
    """The value as text for a finding; a long text loses its middle."""
    text = value if isinstance(value, str) else repr(value)
    half = _MAX_DETAIL_CHARACTERS // 2
    return text if len(text) <= _MAX_DETAIL_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


def require_profile(profile: ProfileTotals | None, filter_name: str) -> ProfileTotals:
    """The profile, for a filter that cannot do without one.

    Raises:
        ConfigError: If no profile was given.
    """
    if profile is None:
        raise ConfigError(
            f"filter {filter_name} needs a profile: give the file that `verl-pivot profile` wrote with --profile"
        )
    return profile
