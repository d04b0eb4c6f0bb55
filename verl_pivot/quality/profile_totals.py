"""profile.jsonl -> sums of rewards over each trajectory's turns, which filters use."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple, TypeAlias

from verl_pivot.data.trajectories import read_trajectories
from verl_pivot.data.turns import turns
from verl_pivot.errors import DataError
from verl_pivot.profiling.early_stopping import EarlyStop, estimate
from verl_pivot.profiling.profiles import (
    TurnKinds,
    file_sha256,
    is_published,
    iter_profiles,
    profiled_sha256,
    read_settings,
)
from verl_pivot.profiling.summary import TurnOutcome, outcome
from verl_pivot.types import TurnProfile


@dataclass(slots=True, kw_only=True)
class TrajectoryTotals:
    """Sums over a trajectory's turns; turns without a decided sample count in `num_turns` alone."""

    num_turns: int = 0
    num_decided_turns: int = 0
    num_solved_turns: int = 0
    """Turns at which all K samples were drawn and got the full score."""
    reward_mean_sum: Fraction = Fraction()
    pass_rate_sum: Fraction = Fraction()
    """Exact, like the sum of mean rewards, so that a trajectory on a bound of a filter is not rounded below it."""
    min_samples: int | None = None
    """Fewest samples that any turn has."""

    @property
    def reward_mean(self) -> float:
        """Mean over the decided turns of their mean rewards; NaN without one."""
        return float(self.reward_mean_sum / self.num_decided_turns) if self.num_decided_turns else math.nan

    @property
    def pass_rate(self) -> float:
        """Mean over the decided turns of their shares of full scores; NaN without one."""
        return float(self.pass_rate_sum / self.num_decided_turns) if self.num_decided_turns else math.nan

    def add(self, turn: TurnProfile, early_stop: EarlyStop | None) -> None:
        """Add a turn; with a plan of early stopping, by its unbiased estimates for all K samples."""
        self.num_turns += 1
        num_samples = len(turn.samples)
        self.min_samples = num_samples if self.min_samples is None else min(self.min_samples, num_samples)
        if turn.scores:
            self.num_decided_turns += 1
            exact = _exact_means(turn, early_stop)
            self.reward_mean_sum += exact.reward
            self.pass_rate_sum += exact.pass_rate
        num_wanted = num_samples if early_stop is None else early_stop.num_samples
        self.num_solved_turns += outcome(turn) is TurnOutcome.ALWAYS_RIGHT and len(turn.scores) == num_wanted


class _ExactMeans(NamedTuple):
    reward: Fraction
    pass_rate: Fraction


def _exact_means(turn: TurnProfile, early_stop: EarlyStop | None) -> _ExactMeans:
    """Mean reward and share of full scores of a turn with a decided sample; with early stopping, their estimates."""
    if early_stop is not None:
        estimates = estimate(early_stop, [sample.verdict.score for sample in turn.samples])
        assert estimates is not None, turn
        return _ExactMeans(estimates.reward_mean, estimates.pass_rate)
    scores = turn.scores
    return _ExactMeans(sum(map(Fraction, scores), Fraction()) / len(scores), Fraction(scores.count(1.0), len(scores)))


ProfileTotals: TypeAlias = Mapping[str, TrajectoryTotals]
"""Totals by trajectory id."""


def totals_of(profiles: Iterable[TurnProfile], early_stop: EarlyStop | None = None) -> dict[str, TrajectoryTotals]:
    """Totals of each trajectory from the profiles of its turns, in any order."""
    totals: dict[str, TrajectoryTotals] = {}
    for turn in profiles:
        totals.setdefault(turn.trajectory_id, TrajectoryTotals()).add(turn, early_stop)
    return totals


def read_totals(path: Path, trajectories: Path) -> ProfileTotals:
    """Totals of the profile at `path`, without trajectories of which it lacks a turn.

    Raises:
        DataError: If the profile was measured on another file than `trajectories`.
    """
    if profiled_sha256(path) != file_sha256(trajectories):
        raise DataError(
            f"{path} was not measured on the present content of {trajectories}; profile these trajectories again, to "
            "another --out"
        )
    settings = None if is_published(path) else read_settings(path)
    totals = totals_of(iter_profiles(path), None if settings is None else settings.early_stop)
    nothing = TrajectoryTotals()
    return {
        identity: found
        for identity, number in _num_turns(trajectories, "all" if settings is None else settings.turns).items()
        if (found := totals.get(identity, nothing)).num_turns == number
    }


def _num_turns(trajectories: Path, kinds: TurnKinds) -> dict[str, int]:
    """{id of a trajectory: number of turns that a whole profile has of it}; several rows may share one id."""
    numbers: dict[str, int] = {}
    for trajectory in read_trajectories(trajectories):
        found = sum(kinds == "all" or bool(turn.expert.tool_calls) for turn in turns(trajectory))
        numbers[trajectory.id] = numbers.get(trajectory.id, 0) + found
    return numbers


def totals_for(profile: ProfileTotals, ids: Iterable[str]) -> list[TrajectoryTotals]:
    """[num_trajectories] totals of the trajectories with these ids.

    Raises:
        DataError: If the profile lacks a trajectory, or a turn of it.
    """
    listed = list(ids)
    if missing := [identity for identity in listed if identity not in profile]:
        raise DataError(
            f"the profile lacks {len(missing)} of {len(listed)} trajectories, or turns of them, {missing[0]} among "
            "them; run the same `verl-pivot profile` command again, without --limit and --draw: it profiles the "
            "missing turns"
        )
    return [profile[identity] for identity in listed]
