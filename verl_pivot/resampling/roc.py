"""Resample on correct (GRPO-RoC): which rollouts of an oversampled group the update sees.

Both functions take and give the same: [num_rollouts] scores, of which > 0 is a success, and penalties, of which lower
is cleaner; `keep` distinct indices, ascending. Of a group with one outcome they keep `keep`.

Source: rStar2-Agent (arXiv:2508.20722), section 2.2.3, equations 4 and 5, for any `keep` up to the size of the group;
there `keep` is half of it.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

_TINY = 1e-6
"""Added to every penalty, so that a penalty of 0 has a weight: clean rollouts come before all others."""


class _Outcomes(NamedTuple):
    successes: list[int]
    failures: list[int]


def draw_as_in_paper(
    scores: Sequence[float], penalties: Sequence[float], *, keep: int, rng: random.Random
) -> list[int]:
    """Draw failures uniformly and successes with probability proportional to 1 / penalty, without replacement.

    Of failures floor(num_failures * keep / num_rollouts) stay, as the paper's floor(num_failures / 2), and successes
    fill the rest. Differs in that a lone failure stays, without which its group would have no advantage. The paper
    leaves open what becomes of odd counts, of a penalty of 0 and of groups with one outcome.

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
    """Take the first failures and the cleanest successes, in the proportion of the group: no chance in it.

    Source: microsoft/rStar, `rstar2_agent/down_sample/roc.py`. Differs where that stops at an assert: successes fill
    what failures leave, instead of both being rounded, which for odd `keep` may miss it by one.

    Args:
        min_failures: So many stay, if there are so many.
        min_successes: Likewise.

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
