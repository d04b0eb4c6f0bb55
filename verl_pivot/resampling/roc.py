"""Resample on correct (GRPO-RoC): scores and penalties of an oversampled group -> the rollouts that the update sees.

Both functions take [num_rollouts] scores, of which those > 0 are successes, and [num_rollouts] penalties, of which
lower ones are cleaner. They return `keep` distinct indices in ascending order, also if all rollouts have one outcome.

Source: rStar2-Agent (arXiv:2508.20722), section 2.2.3, equations 4 and 5. There `keep` is half of the group; here it is
any number up to the size of the group.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

_TINY = 1e-6
"""Added to every penalty, so that a penalty of 0 has a finite weight; such rollouts come before all others."""


class _Outcomes(NamedTuple):
    """Indices of the successes and of the failures of one group."""

    successes: list[int]
    failures: list[int]


def draw_as_in_paper(
    scores: Sequence[float], penalties: Sequence[float], *, keep: int, rng: random.Random
) -> list[int]:
    """Draw failures uniformly and successes with probability proportional to 1 / penalty, without replacement.

    floor(num_failures * keep / num_rollouts) failures stay, which for half a group is the paper's floor(num_failures /
    2), and successes fill the rest. Differs from the paper in that a lone failure stays, without which its group would
    have no advantage. The paper does not say what to do with odd counts, a penalty of 0, or groups with one outcome.

    Raises:
        ValueError: If the lengths differ or `keep` is out of range.
    """
    outcomes = _split(scores, penalties, keep)
    least_failures = 1 if outcomes.failures and keep > 1 else 0
    num_failures = max(len(outcomes.failures) * keep // len(scores), least_failures)
    failures = rng.sample(outcomes.failures, num_failures)
    # Efraimidis and Spirakis (2006): the smallest of exponential times are a weighted draw without replacement.
    times = {index: rng.expovariate(1.0) * (penalties[index] + _TINY) for index in outcomes.successes}
    return sorted(failures + sorted(times, key=times.__getitem__)[: keep - num_failures])


def pick_as_released(
    scores: Sequence[float], penalties: Sequence[float], *, keep: int, min_failures: int = 2, min_successes: int = 2
) -> list[int]:
    """Take the first failures and the cleanest successes, in the group's proportion and without randomness.

    Source: microsoft/rStar, `rstar2_agent/down_sample/roc.py`. That code rounds both numbers, whose sum may be off by
    one for an odd `keep` and fail its assert. Here the number of failures is rounded, and successes fill the rest.

    Args:
        min_failures: Minimum number of failures that stay; all of them, if the group has fewer.
        min_successes: Minimum number of successes that stay; all of them, if the group has fewer.

    Raises:
        ValueError: If the lengths differ, `keep` is out of range, or the minima exceed it.
    """
    outcomes = _split(scores, penalties, keep)
    if min_failures + min_successes > keep:
        raise ValueError(f"min_failures + min_successes = {min_failures + min_successes} exceeds keep = {keep}")
    num_failures = round(len(outcomes.failures) * keep / len(scores))
    least_failures = min(min_failures, len(outcomes.failures))
    least_successes = min(min_successes, len(outcomes.successes))
    num_failures = min(max(num_failures, least_failures), keep - least_successes)
    cleanest = sorted(outcomes.successes, key=lambda index: penalties[index])
    return sorted(outcomes.failures[:num_failures] + cleanest[: keep - num_failures])


def _split(scores: Sequence[float], penalties: Sequence[float], keep: int) -> _Outcomes:
    if len(scores) != len(penalties):
        raise ValueError(f"got {len(scores)} scores but {len(penalties)} penalties")
    if not 1 <= keep <= len(scores):
        raise ValueError(f"keep must be in [1, {len(scores)}] (the group's size), got {keep}")
    return _Outcomes(
        [index for index, score in enumerate(scores) if score > 0],
        [index for index, score in enumerate(scores) if score <= 0],
    )
