"""TurnProfile -> Statistics of one turn, which early stopping does not bias."""

import math
from typing import NamedTuple

from verl_pivot.profiling.early_stopping import EarlyStop, estimate
from verl_pivot.types import JsonObject, TurnProfile


class Statistics(NamedTuple):
    """NaN where no sample was decided."""

    pass_rate: float
    reward_mean: float
    reward_std: float
    reward_var: float

    def as_dict(self) -> JsonObject:
        """With null for NaN."""
        return {name: None if math.isnan(value) else value for name, value in self._asdict().items()}


def turn_statistics(profile: TurnProfile, early_stop: EarlyStop | None = None) -> Statistics:
    """Of the drawn samples, or of all K that a plan might have drawn.

    What becomes of the turn is for the drawn samples to say, since the plan stopped when they had settled it.
    """
    if early_stop is None:
        return Statistics(profile.pass_rate, profile.reward_mean, profile.reward_std, profile.reward_var)
    estimates = estimate(early_stop, [sample.verdict.score for sample in profile.samples])
    if estimates is None:
        return Statistics(math.nan, math.nan, math.nan, math.nan)
    pass_rate, mean, variance = map(float, estimates)
    return Statistics(pass_rate, mean, math.sqrt(variance), variance)
