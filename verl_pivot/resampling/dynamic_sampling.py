"""Dynamic sampling: which groups the update sees at all, before resampling within them."""

import random
from collections.abc import Sequence
from enum import StrEnum

_EQUAL = 1e-6


class EqualRewards(StrEnum):
    """What becomes of a group whose rollouts all scored the same, and so has no advantage."""

    KEEP = "keep"
    DROP = "drop"
    """DAPO (arXiv:2503.14476, section 3.2), and rStar2-Agent's released code."""
    KEEP_HALF = "keep_half"
    """L0 (arXiv:2506.23667): each stays with probability 1/2."""


class Fate(StrEnum):
    """Why a group is left out and replaced."""

    TOO_FEW = "too_few"
    """Fewer usable rollouts than the update needs."""
    EQUAL_REWARDS = "equal_rewards"


def are_equal(scores: Sequence[float]) -> bool:
    """Whether they leave no advantage; also of one score or none."""
    return not scores or max(scores) - min(scores) <= _EQUAL


def fate_of_group(
    scores: Sequence[float], *, keep: int, equal_rewards: EqualRewards, rng: random.Random
) -> Fate | None:
    """Whether a finished group is left out; None if not.

    Args:
        scores: Of its usable rollouts: decided, and not masked.
        keep: Rollouts that the update needs of it.
        equal_rewards: The rule for groups without advantage.
        rng: Of L0's coin.
    """
    if len(scores) < keep:
        return Fate.TOO_FEW
    if equal_rewards is EqualRewards.KEEP or not are_equal(scores):
        return None
    if equal_rewards is EqualRewards.KEEP_HALF and rng.random() > 0.5:
        return None
    return Fate.EQUAL_REWARDS
