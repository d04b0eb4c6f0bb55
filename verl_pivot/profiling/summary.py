"""TurnProfiles -> ProfileSummary: outcomes of turns, reasons for low scores, and the reference policy's mean reward."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from verl_pivot.profiling.early_stopping import EarlyStop, turn_statistics
from verl_pivot.types import TurnProfile


class TurnOutcome(StrEnum):
    """Outcome of a turn, derived from the scores of all its samples."""

    ALWAYS_RIGHT = "always right"
    """Every decided sample has full score."""
    ALWAYS_WRONG = "always wrong"
    """Every decided sample has the same score, below full score; like ALWAYS_RIGHT, the turn gives no advantage."""
    MIXED = "mixed"
    """Scores differ: the turn can be a pivot."""
    UNDECIDED = "undecided"
    """The verifier could not decide any sample, or the chat template or each server refuses the turn's prompt."""
    OVERLONG = "overlong"
    """The prompt is longer than --max-prompt-tokens, so nothing was sampled."""


class TrajectoryCluster(NamedTuple):
    """Sum and number of the rewards of one trajectory; rewards within a trajectory are correlated."""

    total: float
    num_values: int

    def with_values(self, values: Sequence[float]) -> "TrajectoryCluster":
        return TrajectoryCluster(self.total + math.fsum(values), self.num_values + len(values))


class MeanWithError(NamedTuple):
    """A mean with its standard error; NaN if there are too few values."""

    mean: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """Numbers that `verl-pivot profile` prints about a whole profile."""

    num_turns: int
    num_by_outcome: dict[TurnOutcome, int]
    reasons: tuple[tuple[str, int], ...]
    """(reason, number of samples) of all samples without a full score, most frequent first."""
    reward: MeanWithError
    """Mean reward over all decided samples; with early stopping, the mean of the turns' estimates."""
    num_tokens: int
    """Number of sampled tokens."""
    num_samples: int
    num_saved: int
    """Number of samples that early stopping saved."""


def outcome(profile: TurnProfile) -> TurnOutcome:
    """Outcome of one turn."""
    scores = profile.scores
    if not profile.samples:
        return TurnOutcome.UNDECIDED if profile.num_prompt_tokens == 0 else TurnOutcome.OVERLONG
    if not scores:
        return TurnOutcome.UNDECIDED
    if min(scores) < max(scores):
        return TurnOutcome.MIXED
    return TurnOutcome.ALWAYS_RIGHT if scores[0] == 1.0 else TurnOutcome.ALWAYS_WRONG


def summarize(profiles: Iterable[TurnProfile], early_stop: EarlyStop | None = None) -> ProfileSummary:
    """Count outcomes and reasons, and average the reward, with each trajectory as one cluster.

    Args:
        profiles: Profiles of the turns.
        early_stop: Plan by which the turns were sampled; None if every turn has all samples.
    """
    outcomes: Counter[TurnOutcome] = Counter()
    reasons: Counter[str] = Counter()
    clusters: dict[str, TrajectoryCluster] = {}
    num_tokens = num_samples = num_saved = 0
    for profile in profiles:
        outcomes[outcome(profile)] += 1
        if rewards := _rewards(profile, early_stop):
            clusters[profile.trajectory_id] = clusters.get(
                profile.trajectory_id, TrajectoryCluster(0.0, 0)
            ).with_values(rewards)
        num_samples += len(profile.samples)
        if early_stop is not None and profile.samples:
            num_saved += early_stop.num_samples - len(profile.samples)
        reasons.update(sample.verdict.reason for sample in profile.samples if sample.verdict.score != 1.0)
        num_tokens += sum(sample.num_tokens for sample in profile.samples)
    return ProfileSummary(
        num_turns=outcomes.total(),
        num_by_outcome={member: outcomes[member] for member in TurnOutcome},
        reasons=tuple(reasons.most_common()),
        reward=clustered_mean(clusters.values()),
        num_tokens=num_tokens,
        num_samples=num_samples,
        num_saved=num_saved,
    )


def _rewards(profile: TurnProfile, early_stop: EarlyStop | None) -> Sequence[float]:
    """Scores of the decided samples; with early stopping, only the estimated mean of all K samples."""
    if early_stop is None or not profile.scores:
        return profile.scores
    return [turn_statistics(profile, early_stop).reward_mean]


def clustered_mean(clusters: Collection[TrajectoryCluster]) -> MeanWithError:
    """Mean of all values, with a standard error that allows for correlation within a cluster.

    The standard error is the usual cluster-robust ("sandwich") estimate,
    sqrt(C / (C - 1) * sum_c (sum_i (x_ci - mean))^2) / N. With one value per cluster it is the ordinary s / sqrt(N).
    It is NaN for fewer than two clusters.

    Args:
        clusters: Clusters of at least one value each.
    """
    num_values = sum(cluster.num_values for cluster in clusters)
    if num_values == 0:
        return MeanWithError(math.nan, math.nan)
    mean = math.fsum(cluster.total for cluster in clusters) / num_values
    if len(clusters) < 2:
        return MeanWithError(mean, math.nan)
    squares = math.fsum((cluster.total - cluster.num_values * mean) ** 2 for cluster in clusters)
    return MeanWithError(mean, math.sqrt(len(clusters) / (len(clusters) - 1) * squares) / num_values)
