"""Simulated studies with a known truth -> how often each interval covers it, and how often a gain is claimed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from verl_pivot.statistics import (
    ClaimVerdict,
    Interval,
    Region,
    SeededEstimate,
    p_inside,
    seeded_difference,
    verdict_of,
)

_DISCORDANT = 0.2
"""Share of the tasks that only one of two arms solves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStudies:
    """Settings of simulated studies."""

    gain: float
    """True difference of the arms: the mean over all possible trainings."""
    spread: float
    """Standard deviation of the true difference of the arms, over trainings with different seeds."""
    num_seeds: int = 3
    num_domains: int = 2
    num_tasks: int = 500
    """Held-out tasks of each domain."""
    num_studies: int = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Shares of the simulated studies for which each of these statements holds."""

    these_trainings: float
    """The interval over tasks holds the true difference of the trainings that were run."""
    over_tasks: float
    """The interval over tasks holds the mean over all trainings."""
    over_trainings: float
    """The interval over trainings holds the mean over all trainings."""
    claimed: float
    """The verdict is that the gain is above 0."""


def coverage(studies: SimulatedStudies, seed: int = 0) -> Coverage:
    """How often the intervals cover the truth and a gain is claimed, over many studies with one truth."""
    rng = np.random.default_rng(seed)
    rows = [_outcome(*simulated, studies) for simulated in _simulate(studies, rng)]
    these, tasks, trainings, claimed = np.mean(rows, axis=0)
    return Coverage(
        these_trainings=float(these), over_tasks=float(tasks), over_trainings=float(trainings), claimed=float(claimed)
    )


def _simulate(studies: SimulatedStudies, rng: np.random.Generator) -> Iterator[tuple[SeededEstimate, float]]:
    """The estimate of each study, and the true difference of its trainings."""
    shape = (studies.num_seeds, studies.num_domains)
    for _ in range(studies.num_studies):
        true = np.repeat(rng.normal(studies.gain, studies.spread, (studies.num_seeds, 1)), studies.num_domains, axis=1)
        drawn = rng.random((*shape, studies.num_tasks))
        better = (_DISCORDANT + true) / 2
        gains = (drawn < better[..., None]).astype(float) - (drawn > 1 - (_DISCORDANT - better)[..., None])
        none = np.zeros(studies.num_tasks)
        yield seeded_difference([[(none, gain) for gain in domains] for domains in gains]), float(true.mean())


def _outcome(estimate: SeededEstimate, true: float, studies: SimulatedStudies) -> tuple[bool, bool, bool, bool]:
    over_tasks, over_trainings, above = estimate.over_tasks, estimate.over_trainings, Region(low=0.0)
    assert over_trainings is not None, "simulated studies have several seeds"
    verdict = verdict_of([(estimate, above)], p_inside(estimate.drawn, above))
    return (
        _holds(over_tasks, true),
        _holds(over_tasks, studies.gain),
        _holds(over_trainings, studies.gain),
        verdict is ClaimVerdict.HOLDS,
    )


def _holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def coverage_table(num_studies: int = 400) -> str:
    """A table in Markdown, for gains of 0 and 4 points, and for trainings that differ by 0, 1 and 3 points."""
    lines = [
        "| true gain | trainings differ by | over tasks, these trainings | over tasks, all trainings | over trainings "
        "| claimed |",
        "|---|---|---|---|---|---|",
    ]
    for gain in (0.0, 0.04):
        for spread in (0.0, 0.01, 0.03):
            found = coverage(SimulatedStudies(gain=gain, spread=spread, num_studies=num_studies))
            shares = (found.these_trainings, found.over_tasks, found.over_trainings, found.claimed)
            cells = [f"{100 * gain:g}", f"{100 * spread:g}", *(f"{share:.0%}" for share in shares)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
