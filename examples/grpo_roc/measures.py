"""Dumps of generated rollouts -> accuracy, length and tool errors, with intervals over problems."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from examples.dumps import decided, step_dumps
from verl_pivot.statistics import bootstrap_counts, percentile_interval
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One decided rollout as it was generated, whether or not the update saw it."""

    problem: str
    """Id of the problem, which is the same in all arms."""
    step: int
    score: float
    num_tokens: int
    """Tokens of the response, observations included."""
    num_calls: int
    num_tool_errors: int


Seeds: TypeAlias = Sequence[Sequence[Rollout]]
"""[num_seeds][num_rollouts] rollouts of one arm."""


class Share(NamedTuple):
    """Contribution of one rollout to a measure, which is the sum of all `part` / the sum of all `whole`."""

    part: float
    whole: float


def _errors_of_success(rollout: Rollout) -> Share:
    return Share(rollout.num_tool_errors, rollout.num_calls) if rollout.score > 0 else Share(0.0, 0.0)


ACCURACY, TOKENS, ERRORS = "accuracy", "response tokens", "tool errors in successes"
MEASURES: Mapping[str, Callable[[Rollout], Share]] = {
    ACCURACY: lambda rollout: Share(rollout.score, 1.0),
    TOKENS: lambda rollout: Share(rollout.num_tokens, 1.0),
    ERRORS: _errors_of_success,
}
"""ERRORS is figure 4 of rStar2-Agent (arXiv:2508.20722): the share of failed calls in rewarded trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measure over all seeds, its 95 % interval, and its value for each seed alone."""

    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]

    def as_dict(self) -> JsonObject:
        return {"value": self.value, "low": self.low, "high": self.high, "by_seed": [*self.by_seed]}


def read_steps(folder: Path) -> list[Rollout]:
    """Rollouts in `trainer.rollout_data_dir`, ordered by step, without masked and undecided ones."""
    return [
        Rollout(
            problem=each.record.prompt_id,
            step=step,
            score=each.score,
            num_tokens=each.record.response_tokens,
            num_calls=each.record.num_calls,
            num_tool_errors=each.record.num_tool_errors,
        )
        for step, path in step_dumps(folder).items()
        for each in decided(path)
    ]


def measure(name: str, rollouts: Sequence[Rollout]) -> float:
    """Value of one of MEASURES; NaN if no rollout contributes to it."""
    shares = [MEASURES[name](rollout) for rollout in rollouts]
    whole = sum(share.whole for share in shares)
    return sum(share.part for share in shares) / whole if whole else float("nan")


def estimate(name: str, seeds: Seeds) -> Estimate:
    """Value of one of MEASURES, with its interval."""
    (drawn,) = resamples(name, seeds)
    return _estimate(_pooled(name, seeds), drawn, [measure(name, rollouts) for rollouts in seeds])


def gain(name: str, baseline: Seeds, arm: Seeds) -> Estimate:
    """Arm's value minus the baseline's, on the same problems."""
    before, after = resamples(name, baseline, arm)
    by_seed = [measure(name, of_arm) - measure(name, of_base) for of_base, of_arm in zip(baseline, arm, strict=True)]
    return _estimate(_pooled(name, arm) - _pooled(name, baseline), after - before, by_seed)


def reduction(name: str, baseline: Seeds, arm: Seeds) -> Estimate:
    """Relative reduction: 1 minus the arm's value divided by the baseline's, on the same problems."""
    before, after = resamples(name, baseline, arm)
    by_seed = [
        1 - measure(name, of_arm) / measure(name, of_base) for of_base, of_arm in zip(baseline, arm, strict=True)
    ]
    return _estimate(1 - _pooled(name, arm) / _pooled(name, baseline), 1 - after / before, by_seed)


def _pooled(name: str, seeds: Seeds) -> float:
    return measure(name, [rollout for rollouts in seeds for rollout in rollouts])


def _estimate(value: float, drawn: NDArray[np.float64], by_seed: Sequence[float]) -> Estimate:
    low, high = percentile_interval(drawn)
    return Estimate(value=value, low=low, high=high, by_seed=tuple(by_seed))


def resamples(name: str, *arms: Seeds) -> list[NDArray[np.float64]]:
    """[num_arms][num_resamples] values of a bootstrap over the problems of all seeds, the same ones for all arms."""
    sums = [_sums(name, seeds) for seeds in arms]
    problems = sorted(set().union(*sums))
    counts = bootstrap_counts(len(problems))
    totals = [counts @ np.array([of_arm.get(problem, Share(0.0, 0.0)) for problem in problems]) for of_arm in sums]
    return [total[:, 0] / total[:, 1] for total in totals]


def _sums(name: str, seeds: Seeds) -> dict[tuple[int, str], Share]:
    """{(seed, problem): sums over its rollouts}; the bootstrap draws a problem with all its rollouts."""
    sums: dict[tuple[int, str], Share] = {}
    for seed, rollouts in enumerate(seeds):
        for rollout in rollouts:
            so_far, more = sums.get((seed, rollout.problem), Share(0.0, 0.0)), MEASURES[name](rollout)
            sums[seed, rollout.problem] = Share(so_far.part + more.part, so_far.whole + more.whole)
    return sums


def last_steps(seeds: Seeds, num_steps: int) -> list[list[Rollout]]:
    """[num_seeds] rollouts of the last steps."""
    return [[each for each in rollouts if each.step > rollouts[-1].step - num_steps] for rollouts in seeds]


def first_step(arms: Mapping[str, Seeds]) -> list[list[Rollout]]:
    """[num_seeds] rollouts of all arms in step 1, before the first update: those of the base policy."""
    by_seed = zip(*arms.values(), strict=True)
    return [[each for rollouts in seed for each in rollouts if each.step == 1] for seed in by_seed]
