"""Per-task outcomes and claims -> estimates, p-values and verdicts, with the names of missing results."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from examples.study.claims import Claim, ClaimPart, Claims, Measure, Tasks
from examples.study.costs import RatioEnd, cost_ratio
from examples.study.outcomes import Solved, StudyResults, UnitEvaluation, accuracy, known_outcomes, share_known
from verl_pivot.statistics import (
    ClaimVerdict,
    Interval,
    Region,
    SeededEstimate,
    holm,
    p_inside,
    seeded_difference,
    verdict_of,
)

BASE = "base"
"""Name of the arm that trains nothing."""
LEAST_KNOWN = 0.98
"""Smallest share of a group's tasks whose outcome must be known for both arms; at the others the system failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPart:
    """Estimates for one part of a claim.

    A ratio of costs is only known to lie between two values (`costs.py`). A difference has a single value, which
    is both the lowest and the highest.
    """

    part: ClaimPart
    low: SeededEstimate | None
    """The lowest value that the outcomes allow, as a logarithm if it is a ratio; None if no seed has both arms."""
    high: SeededEstimate | None
    """The highest value, likewise."""
    seeds: tuple[int, ...]
    """[num_seeds] seeds of the estimates."""
    missing: tuple[str, ...]
    """A sentence for each missing result; if there is one, there is no verdict."""
    left_out: tuple[str, ...] = ()
    """A sentence for each evaluation that does not count, since too many of its outcomes are unknown."""

    @property
    def p(self) -> float:
        return max((p_inside(estimate.drawn, region) for estimate, region in self.nearest), default=1.0)

    @property
    def nearest(self) -> list[tuple[SeededEstimate, Region]]:
        """For each bound of the region, the value that is more likely beyond it; the part holds if neither is."""
        return self._ends(above=self.low, below=self.high)

    @property
    def farthest(self) -> list[tuple[SeededEstimate, Region]]:
        """For each bound of the region, the value that is less likely beyond it; the part does not hold if one is."""
        return self._ends(above=self.high, below=self.low)

    def _ends(
        self, *, above: SeededEstimate | None, below: SeededEstimate | None
    ) -> list[tuple[SeededEstimate, Region]]:
        region = self.part.region
        pairs = ((above, Region(low=region.low)), (below, Region(high=region.high)))
        return [(estimate, bound) for estimate, bound in pairs if estimate is not None and bound != Region()]

    @property
    def over_tasks(self) -> Interval | None:
        """Interval over tasks, from the low end for the lowest value to the high end for the highest value."""
        return None if self.low is None or self.high is None else _hull(self.low.over_tasks, self.high.over_tasks)

    @property
    def over_trainings(self) -> Interval | None:
        """Interval over trainings, likewise; None with a single seed."""
        if self.low is None or self.high is None:
            return None
        return _hull(self.low.over_trainings, self.high.over_trainings)


def _hull(low: Interval | None, high: Interval | None) -> Interval | None:
    return None if low is None or high is None else Interval(low.low, high.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedClaim:
    """A claim with its verdict."""

    claim: Claim
    parts: tuple[JudgedPart, ...]
    shown: tuple[JudgedPart, ...]
    adjusted_p: float
    """The largest p-value of the parts, after Holm's correction over all claims."""
    verdict: ClaimVerdict

    @property
    def missing(self) -> list[str]:
        """Reasons why there is no verdict; each sentence once."""
        return list(dict.fromkeys(text for part in self.parts for text in part.missing))

    @property
    def left_out(self) -> list[str]:
        """Evaluations that do not count; each sentence once."""
        return list(dict.fromkeys(text for part in (*self.parts, *self.shown) for text in part.left_out))


def judge(claims: Claims, results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> list[JudgedClaim]:
    """The verdict on each claim.

    A claim with a seed that lacks an arm is undecided, whatever the other seeds say.

    Args:
        claims: Contents of claims.yaml.
        results: Outcomes of all units.
        seeds: All seeds of the study.
        outside: Groups of tasks that lie outside of the domains.
    """
    judged = [[_judge_part(part, results, seeds, outside) for part in claim.parts] for claim in claims.claims]
    adjusted = holm([max(part.p for part in parts) for parts in judged])
    return [
        JudgedClaim(
            claim=claim,
            parts=tuple(parts),
            shown=tuple(_judge_part(part, results, seeds, outside) for part in claim.shown),
            adjusted_p=p,
            verdict=_verdict(parts, p, claims.alpha),
        )
        for claim, parts, p in zip(claims.claims, judged, adjusted, strict=True)
    ]


def _verdict(parts: Sequence[JudgedPart], adjusted_p: float, alpha: float) -> ClaimVerdict:
    if any(part.missing or part.low is None for part in parts):
        return ClaimVerdict.UNDECIDED
    refuted = verdict_of([each for part in parts for each in part.farthest], adjusted_p, alpha)
    if refuted is ClaimVerdict.DOES_NOT_HOLD:
        return refuted
    shown = verdict_of([each for part in parts for each in part.nearest], adjusted_p, alpha)
    return shown if shown is ClaimVerdict.HOLDS else ClaimVerdict.UNDECIDED


def _judge_part(part: ClaimPart, results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> JudgedPart:
    compared = [_compared(part, results, seed, outside) for seed in seeds]
    found = [each for each in compared if each.arm]
    timed = (part.arm, part.baseline) if part.measure is Measure.SECONDS else ()
    beside = [
        f"{arm} was trained beside other arms, so that its seconds do not count: train it with --jobs 1"
        for arm in timed
        if arm in results.about.side_by_side
    ]
    low, high = _estimates(part, found) if found else (None, None)
    return JudgedPart(
        part=part,
        low=low,
        high=high,
        seeds=tuple(each.seed for each in found),
        missing=(*(text for each in compared for text in each.missing), *beside),
        left_out=tuple(text for each in compared for text in each.left_out),
    )


def _estimates(part: ClaimPart, compared: "Sequence[_Compared]") -> tuple[SeededEstimate, SeededEstimate]:
    """The lowest and the highest value that the outcomes allow."""
    if part.measure.is_ratio:
        ratios = [cost_ratio(part.measure, each.arm, each.baseline, each.groups, each.seed) for each in compared]
        return _mean([each.low for each in ratios]), _mean([each.high for each in ratios])
    difference = seeded_difference([paired_outcomes(each.baseline[-1], each.arm[-1], each.groups) for each in compared])
    return difference, difference


def _mean(ends: Sequence[RatioEnd]) -> SeededEstimate:
    by_seed = tuple(each.value for each in ends)
    drawn = np.mean([each.drawn for each in ends], axis=0)
    return SeededEstimate(value=math.fsum(by_seed) / len(by_seed), by_seed=by_seed, drawn=drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """Evaluations of both arms with one seed; empty if they are missing, or if too few of their outcomes are known."""

    seed: int
    groups: Sequence[str] = ()
    arm: Sequence[UnitEvaluation] = ()
    baseline: Sequence[UnitEvaluation] = ()
    missing: Sequence[str] = ()
    left_out: Sequence[str] = ()


def _compared(part: ClaimPart, results: StudyResults, seed: int, outside: Collection[str]) -> _Compared:
    arm, baseline = (results.curve(name, seed) for name in (part.arm, part.baseline))
    lacking = [name for name, curve in ((part.arm, arm), (part.baseline, baseline)) if not curve]
    if lacking:
        return _Compared(seed=seed, missing=[f"{name}, seed {seed}, was not run" for name in lacking])
    groups, finals = groups_of(arm[-1].solved, part.tasks, outside), (arm[-1], baseline[-1])
    least = share_known(finals, groups)
    if least < LEAST_KNOWN:
        text = (
            f"{part.arm} and {part.baseline}, seed {seed}, both know the outcomes of {least:.1%} of the {part.tasks} "
            f"tasks of a group, and {LEAST_KNOWN:.0%} are needed"
        )
        return _Compared(seed=seed, missing=[text])
    if not part.measure.is_ratio:
        return _Compared(seed=seed, groups=groups, arm=arm[-1:], baseline=baseline[-1:])
    counted = [*finals]
    for each in (*arm[:-1], *baseline[:-1]):
        counted += [each] if share_known([*counted, each], groups) >= LEAST_KNOWN else []
    own, others = ([each for each in curve if each in counted] for curve in (arm, baseline))
    return _Compared(
        seed=seed,
        groups=groups,
        arm=own,
        baseline=others,
        missing=_no_gain(own, results.final(BASE, seed), groups),
        left_out=[_left_out(each) for each in (*arm, *baseline) if each not in counted],
    )


def _left_out(evaluation: UnitEvaluation) -> str:
    return (
        f"{evaluation.arm}, seed {evaluation.seed}, step {evaluation.step}: too many outcomes are not known, so it is "
        "left out of the curve"
    )


def _no_gain(arm: Sequence[UnitEvaluation], start: UnitEvaluation | None, groups: Sequence[str]) -> list[str]:
    """A sentence if the arm does not solve more than the base policy, so that its costs say nothing."""
    if start is None:
        return [f"{BASE}, seed {arm[-1].seed}, was not run"]
    before, *after = (accuracy(each, groups) or 0.0 for each in (start, *arm))
    return [] if max(after) > before else [f"{arm[-1].arm}, seed {arm[-1].seed}, solves no more than the base policy"]


def groups_of(solved: Solved, tasks: Tasks, outside: Collection[str]) -> list[str]:
    """Names of the groups of held-out tasks that a claim is about."""
    return sorted(group for group in solved if (group in outside) is (tasks is Tasks.OUTSIDE))


def paired_outcomes(
    baseline: UnitEvaluation, arm: UnitEvaluation, groups: Sequence[str]
) -> list[tuple[list[float], list[float]]]:
    """[num_groups] outcomes of both arms, [num_tasks] each, on the tasks whose outcome is known for both."""
    pairs = []
    for group in groups:
        both = known_outcomes([baseline, arm], group)
        pairs.append(([float(row[0]) for row in both], [float(row[1]) for row in both]))
    return pairs
