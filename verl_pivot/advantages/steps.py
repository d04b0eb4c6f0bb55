"""Returns of all steps of a batch -> one advantage for each step (L0's REINFORCE++ by steps)."""

from collections.abc import Sequence
from math import fsum, sqrt
from typing import Literal

STEP_ESTIMATOR = "step_reinforce_pp"
"""Name of the advantage estimator that `advantages.estimators` registers with verl."""
EPSILON = 1e-8
"""Keeps the advantage finite where all returns are equal."""


def sampled_runs(mask: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of sampled tokens in a response, which are its steps, as (first position, position behind the last).

    Args:
        mask: [num_tokens] 1 where the policy sampled the token, else 0.

    Example:
        sampled_runs([1, 1, 0, 1])  # [(0, 2), (3, 4)]
    """
    starts = [at for at, value in enumerate(mask) if value and (at == 0 or not mask[at - 1])]
    ends = [at + 1 for at, value in enumerate(mask) if value and (at + 1 == len(mask) or not mask[at + 1])]
    return list(zip(starts, ends, strict=True))


def step_advantages(returns: Sequence[float], normalise: Literal["released", "paper"] = "released") -> list[float]:
    """Returns minus their mean, divided by their standard deviation.

    The sums are exact up to the last rounding, so that neither the order of the steps nor their distribution over rows
    changes an advantage.

    Source: L0 (arXiv:2506.23667) and its released code, `step_level_mask_whiten`, whose standard deviation divides
    by n - 1 (torch's default). There a single step has an advantage of NaN; here it has 0, like any step whose return
    is the mean.

    Args:
        returns: [num_steps] returns of all steps of the batch.
        normalise: "released" adds EPSILON to the standard deviation, "paper" to the variance.

    Returns:
        [num_steps] advantages.

    Example:
        step_advantages([0.0, 1.0])  # [-0.70710677, 0.70710677]
    """
    num_steps = len(returns)
    if not returns:
        return []
    mean = fsum(returns) / num_steps
    centred = [each - mean for each in returns]
    variance = fsum(each * each for each in centred) / max(num_steps - 1, 1)
    scale = sqrt(variance + EPSILON) if normalise == "paper" else sqrt(variance) + EPSILON
    return [each / scale for each in centred]
