"""profile.jsonl -> sums of rewards over each trajectory's turns, which filters use."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from verl_pivot.errors import DataError
from verl_pivot.profiling.profiles import file_sha256, iter_profiles, profiled_sha256
from verl_pivot.profiling.summary import TurnOutcome, outcome
from verl_pivot.types import TurnProfile


@dataclass(slots=True, kw_only=True)
class TrajectoryTotals:
    """Sums over a trajectory's turns; turns without a decided sample count in `num_turns` alone."""

    num_turns: int = 0
    num_decided_turns: int = 0
    num_solved_turns: int = 0
    """Turns at which every sample got the full score and none was undecided."""
    reward_mean_sum: float = 0.0
    pass_rate_sum: float = 0.0
    min_samples: int | None = None
    """Fewest samples that any turn has."""

    @property
    def reward_mean(self) -> float:
        """Mean over the decided turns of their mean rewards; NaN without one."""
        return self.reward_mean_sum / self.num_decided_turns if self.num_decided_turns else math.nan

    @property
    def pass_rate(self) -> float:
        """Mean over the decided turns of their shares of full scores; NaN without one."""
        return self.pass_rate_sum / self.num_decided_turns if self.num_decided_turns else math.nan

    def add(self, turn: TurnProfile) -> None:
        self.num_turns += 1
        num_samples = len(turn.samples)
        self.min_samples = num_samples if self.min_samples is None else min(self.min_samples, num_samples)
        if turn.scores:
            self.num_decided_turns += 1
            self.reward_mean_sum += turn.reward_mean
            self.pass_rate_sum += turn.pass_rate
        self.num_solved_turns += outcome(turn) is TurnOutcome.ALWAYS_RIGHT and len(turn.scores) == num_samples


ProfileTotals: TypeAlias = Mapping[str, TrajectoryTotals]
"""Totals by trajectory id."""


def totals_of(turns: Iterable[TurnProfile]) -> ProfileTotals:
    """Totals of each trajectory from the profiles of its turns, in any order."""
    totals: dict[str, TrajectoryTotals] = {}
    for turn in turns:
        totals.setdefault(turn.trajectory_id, TrajectoryTotals()).add(turn)
    return totals


def read_totals(path: Path, trajectories: Path) -> ProfileTotals:
    """Totals of the profile at `path`, which must have been measured on the file `trajectories`.

    Raises:
        DataError: If the profile was measured on another file.
    """
    if profiled_sha256(path) != file_sha256(trajectories):
        raise DataError(
            f"{path} was not measured on the present content of {trajectories}; profile these trajectories again, to "
            "another --out"
        )
    return totals_of(iter_profiles(path))


def totals_for(profile: ProfileTotals, ids: Iterable[str]) -> list[TrajectoryTotals]:
    """[num_trajectories] totals of the trajectories with these ids.

    Raises:
        DataError: If the profile lacks a trajectory.
    """
    listed = list(ids)
    if missing := [identity for identity in listed if identity not in profile]:
        raise DataError(
            f"the profile lacks {len(missing)} of {len(listed)} trajectories, {missing[0]} among them; run the same "
            "`verl-pivot profile` command again, without --limit: it profiles the missing turns"
        )
    return [profile[identity] for identity in listed]
