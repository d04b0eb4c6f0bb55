"""Dynamic sampling: scores of a finished group -> whether the group is dropped, before any resampling within it."""

import random
from collections.abc import Sequence
from enum import StrEnum

_MAX_ROUNDING = 1e-6
"""Largest difference of two scores that count as equal."""


class EqualRewards(StrEnum):
    """Rule for groups whose rollouts all scored the same, which have no advantage."""

    KEEP = "keep"
    REJECT = "reject"
    """Leave the group out of the update without replacing it, as rStar2-Agent (arXiv:2508.20722, section 4) does."""
    DROP = "drop"
    """Replace the group by another prompt, as DAPO (arXiv:2503.14476, section 3.2) does."""
    KEEP_HALF = "keep_half"
    """Replace the group with probability 1/2, as L0 (arXiv:2506.23667) does."""


class DropReason(StrEnum):
    """Reason for which the update does not see a group."""

    TOO_FEW = "too_few"
    """The group has fewer usable rollouts than the update needs."""
    EQUAL_REWARDS = "equal_rewards"
    """All rollouts of the group scored the same."""


def are_equal(scores: Sequence[float]) -> bool:
    """Whether the scores of a group are equal up to rounding, so that it has no advantage; true for none or one."""
    return not scores or max(scores) - min(scores) <= _MAX_ROUNDING


def drop_reason_of(
    scores: Sequence[float], *, keep: int, equal_rewards: EqualRewards, rng: random.Random
) -> DropReason | None:
    """Why a finished group is dropped and replaced; None if it stays, or if only the update leaves it out.

    Args:
        scores: [num_usable] scores of the rollouts that are decided and not masked.
        keep: Number of rollouts that the update needs of each group.
        equal_rewards: Rule for groups whose scores are equal.
        rng: Random generator for EqualRewards.KEEP_HALF.
    """
    if len(scores) < keep:
        return DropReason.TOO_FEW
    if equal_rewards in (EqualRewards.KEEP, EqualRewards.REJECT) or not are_equal(scores):
        return None
    if equal_rewards is EqualRewards.KEEP_HALF and rng.random() > 0.5:
        return None
    return DropReason.EQUAL_REWARDS
