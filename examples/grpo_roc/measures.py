"""Dumps of generated rollouts -> accuracy, length and tool errors, with intervals over problems."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from verl_pivot.types import JsonObject

_NUM_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One decided rollout as it was generated, whether or not the update saw it."""

    group: str
    """Shared by the rollouts of one problem."""
    step: int
    score: float
    num_tokens: int
    """Of the response, what the tool gave back included."""
    num_calls: int
    num_tool_errors: int


Seeds: TypeAlias = Sequence[Sequence[Rollout]]
"""[num_seeds][num_rollouts] of one arm."""


class Share(NamedTuple):
    """A rollout's part in a measure, which is the sum of `part` over the sum of `whole`."""

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
"""ERRORS is rStar2-Agent's figure 4 (arXiv:2508.20722): of the calls of rewarded trajectories, those that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A measure over all seeds, its 95 % interval, and what each seed alone gives."""

    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]

    def as_dict(self) -> JsonObject:
        return {"value": self.value, "low": self.low, "high": self.high, "by_seed": [*self.by_seed]}


def read_rollouts(folder: Path) -> list[Rollout]:
    """Those of `trainer.rollout_data_dir` in the order of their steps, without masked and undecided ones."""
    paths = sorted((folder / "tools").glob("*.jsonl"), key=lambda path: int(path.stem))
    lines = [(int(path.stem), json.loads(line)) for path in paths for line in path.read_text().splitlines()]
    return [
        Rollout(
            group=line["uid"].split("_")[0],
            step=step,
            score=line["score"],
            num_tokens=line["response_tokens"],
            num_calls=line["num_calls"],
            num_tool_errors=line["num_tool_errors"],
        )
        for step, line in lines
        if line["score"] is not None and not line["is_masked"]
    ]


def measure(name: str, rollouts: Sequence[Rollout]) -> float:
    """One of MEASURES; NaN where there is nothing to measure."""
    shares = [MEASURES[name](rollout) for rollout in rollouts]
    whole = sum(share.whole for share in shares)
    return sum(share.part for share in shares) / whole if whole else float("nan")


def estimate(name: str, seeds: Seeds) -> Estimate:
    """One of MEASURES with its interval."""
    low, high = np.quantile(resamples(name, seeds, random_seed=0), (0.025, 0.975))
    pooled = [rollout for rollouts in seeds for rollout in rollouts]
    by_seed = tuple(measure(name, rollouts) for rollouts in seeds)
    return Estimate(value=measure(name, pooled), low=float(low), high=float(high), by_seed=by_seed)


def reduction(name: str, baseline: Seeds, arm: Seeds) -> Estimate:
    """By what share of the baseline's value the arm's is lower; resampled independently of each other."""
    drawn = 1 - resamples(name, arm, random_seed=0) / resamples(name, baseline, random_seed=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    before, after = estimate(name, baseline), estimate(name, arm)
    by_seed = tuple(1 - of_arm / of_base for of_base, of_arm in zip(before.by_seed, after.by_seed, strict=True))
    return Estimate(value=1 - after.value / before.value, low=float(low), high=float(high), by_seed=by_seed)


def resamples(name: str, seeds: Seeds, *, random_seed: int) -> NDArray[np.float64]:
    """[num_resamples] the measure of bootstraps over the groups of all seeds, whose rollouts share a problem."""
    sums: dict[tuple[int, str], list[float]] = {}
    for seed, rollouts in enumerate(seeds):
        for rollout in rollouts:
            total = sums.setdefault((seed, rollout.group), [0.0, 0.0])
            share = MEASURES[name](rollout)
            total[0] += share.part
            total[1] += share.whole
    groups = np.array(list(sums.values()))
    equal = np.full(len(groups), 1 / len(groups))
    counts = np.random.default_rng(random_seed).multinomial(len(groups), equal, _NUM_RESAMPLES)
    part, whole = (counts @ groups).T
    return np.asarray(part / whole)


def last_steps(seeds: Seeds, num_steps: int) -> list[list[Rollout]]:
    """[num_seeds] what the last steps generated."""
    return [[each for each in rollouts if each.step > rollouts[-1].step - num_steps] for rollouts in seeds]


def first_step(arms: Mapping[str, Seeds]) -> list[list[Rollout]]:
    """[num_seeds] what all arms generated before the first update, which is the base policy's."""
    of_seed = zip(*arms.values(), strict=True)
    return [[each for rollouts in seed for each in rollouts if each.step == 1] for seed in of_seed]
