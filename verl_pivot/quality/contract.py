"""The contract of a filter: one Trajectory -> why it is dropped, or all of them together -> why each of them is."""

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
"""A YAML list of texts."""

_MAX_DETAIL_CHARACTERS = 400


class FilterOptions(Options):
    """Base of every filter's options: an unknown one is an error, and none is converted."""

    model_config = ConfigDict(strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Why a trajectory is dropped.

    Example:
        Finding(reason="unknown_tool", detail="turn 2 calls refund_all, which is no tool")
    """

    reason: str
    """Short code in snake_case."""
    detail: str
    """Explanation for people; what it quotes of the data is `shortened`."""


class TrajectoryFilter(ABC):
    """Judges each trajectory alone, in any process and any order."""

    @abstractmethod
    def judge(self, trajectory: Trajectory) -> Finding | None:
        """Why this trajectory is dropped; None keeps it. Raises only for a bug: an exception stops the run."""

    def facts(self) -> JsonObject:
        """What the report says of this filter beside its counts."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Groups of bars for the picture.

    Example:
        Chart(title="difficulty", labels=("easy", "hard"), series={"before": (0.9, 0.1), "after": (0.5, 0.5)})
    """

    title: str
    labels: tuple[str, ...]
    """[num_groups]"""
    series: dict[str, tuple[float, ...]]
    """[num_groups] heights under each name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What a DatasetFilter decides."""

    dropped: dict[int, Finding]
    """[position] of those that go; the others stay."""
    note: str = ""
    """Remark in the printed table, such as the number of clusters."""
    facts: JsonObject = field(default_factory=dict)
    """Values for the report."""
    charts: tuple[Chart, ...] = ()


class DatasetFilter(ABC, Generic[Feature]):
    """Judges all trajectories that the filters before it let pass, by a small feature of each."""

    needs_profile: bool = False

    @abstractmethod
    def feature(self, trajectory: Trajectory) -> Feature:
        """What `decide` has to know of a trajectory: small, since all of them are held at once."""

    @abstractmethod
    def decide(self, ids: Sequence[str], features: Sequence[Feature], profile: ProfileTotals | None) -> Ruling:
        """Which trajectories go.

        Args:
            ids: [num_trajectories] in the order of the file; several rows may share one.
            features: [num_trajectories]
            profile: What was measured of the file; None: nothing. Never None if the filter needs one.
        """


def shortened(value: object) -> str:
    """Text for a finding; what is long loses its middle."""
    text = value if isinstance(value, str) else repr(value)
    half = _MAX_DETAIL_CHARACTERS // 2
    return text if len(text) <= _MAX_DETAIL_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


def require_profile(profile: ProfileTotals | None, what: str) -> ProfileTotals:
    """The profile.

    Raises:
        ConfigError: If there is none.
    """
    if profile is None:
        raise ConfigError(f"{what} is told by the profile: give the file of `verl-pivot profile` with --profile")
    return profile
