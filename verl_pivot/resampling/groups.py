"""A finished, oversampled group -> whether it is dropped, which of its rollouts the update sees, and the metrics."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from verl_pivot.resampling.by_return import keep_best, keep_farthest
from verl_pivot.resampling.dynamic_sampling import DropReason, are_equal, drop_reason_of
from verl_pivot.resampling.penalties import Penalty
from verl_pivot.resampling.roc import draw_as_in_paper, pick_as_released
from verl_pivot.resampling.settings import ResamplingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One generated trajectory with a decided reward.

    Example:
        Rollout(id="a_3", score=1.0, penalty=Penalty(num_calls=2, num_errors=1, num_answers=1, num_turns=3))
    """

    id: str
    """Id that verl gave the rollout: `{uid}_{session}`."""
    score: float
    penalty: Penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one prompt."""

    uid: str
    number: int
    """Position of the group's prompt in the order in which the step's prompts were handed out."""
    rollouts: tuple[Rollout, ...]
    """[num_usable]"""
    undecided: tuple[str, ...] = ()
    """[num_undecided] reason why each rollout without a reward is undecided."""

    @property
    def scores(self) -> list[float]:
        return [rollout.score for rollout in self.rollouts]

    def drop_reason(self, settings: ResamplingSettings, step: int) -> DropReason | None:
        """Why dynamic sampling drops the group, before anything is drawn from it; None if the group stays."""
        rng = random.Random(f"{settings.seed}/{step}/{self.number}/fate")
        return drop_reason_of(self.scores, keep=settings.group_size, equal_rewards=settings.equal_rewards, rng=rng)

    def kept(self, settings: ResamplingSettings, step: int) -> list[Rollout]:
        """[group_size] rollouts that the update sees; the draw depends only on seed, step and the group's number."""
        penalties = [rollout.penalty.total for rollout in self.rollouts]
        keep = settings.group_size
        match settings.mode:
            case "paper":
                rng = random.Random(f"{settings.seed}/{step}/{self.number}/draw")
                chosen = draw_as_in_paper(self.scores, penalties, keep=keep, rng=rng)
            case "released":
                chosen = pick_as_released(
                    self.scores, penalties, keep=keep,
                    min_failures=settings.min_failures, min_successes=settings.min_successes,
                )  # fmt: skip
            case "best_of_n":
                chosen = keep_best(self.scores, keep=keep)
            case "farthest":
                chosen = keep_farthest(self.scores, keep=keep)
        return [self.rollouts[index] for index in chosen]


@dataclass(slots=True, kw_only=True)
class DroppedGroups:
    """Counts of the groups that were dropped in one step."""

    reasons: Counter[DropReason] = field(default_factory=Counter)
    """Number of groups dropped for each reason."""
    undecided: Counter[str] = field(default_factory=Counter)
    """{reason of the verdict: number of undecided rollouts in the dropped groups}."""
    num_equal_zeros: int = 0
    """Groups dropped because all their rollouts failed."""
    num_equal_others: int = 0
    """Groups dropped because all their rollouts got the same reward above 0."""

    def add(self, group: Group, reason: DropReason) -> None:
        self.reasons[reason] += 1
        self.undecided.update(group.undecided)
        if reason is DropReason.EQUAL_REWARDS:
            self.num_equal_zeros += group.scores[0] <= 0
            self.num_equal_others += group.scores[0] > 0

    def __str__(self) -> str:
        """The counts as part of an error message."""
        too_few, equal = self.reasons[DropReason.TOO_FEW], self.reasons[DropReason.EQUAL_REWARDS]
        reasons = f" {dict(self.undecided.most_common(3))}" if self.undecided else ""
        return f"{too_few} groups had too few usable rollouts{reasons}, {equal} had equal rewards"


def resampling_metrics(
    groups: Sequence[Group], kept: Mapping[str, Sequence[Rollout]], dropped: DroppedGroups
) -> dict[str, float]:
    """Metrics of one step, as {name: value}; names are rStar2-Agent's where its code reports the same.

    Args:
        groups: Groups that stay.
        kept: {uid: [group_size] rollouts that the update sees} for each of these groups.
        dropped: Counts of the groups that were dropped.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    chosen = {rollout.id for each in kept.values() for rollout in each}
    return {
        **_equal_reward_metrics(groups, dropped),
        **_error_metrics(rollouts),
        **_answer_metrics(rollouts),
        "down_sampling/before_sampling_trace_num": float(len(rollouts)),
        "down_sampling/after_sampling_trace_num": float(len(chosen)),
        "down_sampling/unusable_rollouts": float(sum(len(group.undecided) for group in groups)),
        **{f"down_sampling/groups_{reason}": float(dropped.reasons[reason]) for reason in DropReason},
        **_means("kept", [rollout for rollout in rollouts if rollout.id in chosen]),
        **_means("dropped", [rollout for rollout in rollouts if rollout.id not in chosen]),
    }


def _equal_reward_metrics(groups: Sequence[Group], dropped: DroppedGroups) -> dict[str, float]:
    equal = [group for group in groups if are_equal(group.scores)]
    zeros = sum(group.scores[0] <= 0 for group in equal) + dropped.num_equal_zeros
    others = sum(group.scores[0] > 0 for group in equal) + dropped.num_equal_others
    num = len(groups) + dropped.reasons[DropReason.EQUAL_REWARDS]
    return {
        "reject_equal_reward/solve_equal_total": float(zeros + others),
        "reject_equal_reward/solve_non_equal_total": float(num - zeros - others),
        "reject_equal_reward/solve_equal_total_ratio": (zeros + others) / num,
        "reject_equal_reward/solve_equal_zeros": float(zeros),
        "reject_equal_reward/solve_equal_non_all_zeros": float(others),
    }


def _error_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    num_calls = sum(rollout.penalty.num_calls for rollout in rollouts)
    num_errors = sum(rollout.penalty.num_errors for rollout in rollouts)
    return {
        "roc_error_ratio/global_err_ratio": num_errors / num_calls if num_calls else 0.0,
        "roc_error_ratio/penalty_weight": fmean(rollout.penalty.error for rollout in rollouts),
    }


def _answer_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    counts = [rollout.penalty.num_answers for rollout in rollouts]
    known = [count for count in counts if count is not None]
    if not known:
        return {}
    return {
        "roc_answer_format/answer_per_rollout_mean": fmean(known),
        "roc_answer_format/zero_answer_count": float(known.count(0)),
        "roc_answer_format/one_answer_count": float(known.count(1)),
        "roc_answer_format/gt_one_answer_count": float(sum(count > 1 for count in known)),
        "roc_answer_format/penalty_weight": fmean(rollout.penalty.format for rollout in rollouts),
    }


def _means(name: str, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean reward and penalty of some rollouts, and mean penalty of their successes: only these are chosen by it."""
    if not rollouts:
        return {}
    successes = [rollout.penalty.total for rollout in rollouts if rollout.score > 0]
    found = {
        f"down_sampling/{name}_reward_mean": fmean(rollout.score for rollout in rollouts),
        f"down_sampling/{name}_penalty_mean": fmean(rollout.penalty.total for rollout in rollouts),
    }
    if successes:
        found[f"down_sampling/{name}_penalty_of_successes_mean"] = fmean(successes)
    return found
