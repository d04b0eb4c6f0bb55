"""Per-task outcomes and claims -> estimates, p-values and verdicts; whatever is missing is named."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.study.claims import Claim, ClaimPart, Claims, Measure, Tasks
from examples.study.outcomes import Solved, StudyResults, UnitEvaluation
from verl_pivot.statistics import (
    ClaimVerdict,
    SeededEstimate,
    bootstrap_means,
    first_reaching,
    holm,
    p_inside,
    seeded_difference,
    verdict_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPart:
    """What the outcomes say about one part of a claim."""

    part: ClaimPart
    estimate: SeededEstimate | None
    """The measure, as a logarithm where it is a ratio; None if no seed has both arms."""
    seeds: tuple[int, ...]
    """[num_seeds] seeds of the estimate."""
    missing: tuple[str, ...]
    """A sentence for each seed that lacks an arm."""
    never: tuple[int, ...] = ()
    """Seeds whose baseline never reached the level, so that its whole cost counts, which makes a lower bound."""

    @property
    def p(self) -> float:
        return 1.0 if self.estimate is None else p_inside(self.estimate.drawn, self.part.region)


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
        """What stands in the way of a verdict; each sentence once."""
        return list(dict.fromkeys(text for part in self.parts for text in part.missing))


def judge(claims: Claims, results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> list[JudgedClaim]:
    """The verdict on each claim.

    A claim with a seed that lacks an arm is undecided, whatever the other seeds say.

    Args:
        claims: What is claimed.
        results: Outcomes of all units.
        seeds: Seeds that the study was going to run.
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
    complete = [(part.estimate, part.part.region) for part in parts if part.estimate is not None and not part.missing]
    if len(complete) < len(parts):
        return ClaimVerdict.UNDECIDED
    return verdict_of(complete, adjusted_p, alpha)


def _judge_part(part: ClaimPart, results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> JudgedPart:
    curves = {seed: (results.curve(part.arm, seed), results.curve(part.baseline, seed)) for seed in seeds}
    missing = [text for seed, (arm, base) in curves.items() for text in _missing(part, seed, arm, base, outside)]
    found = {seed: pair for seed, pair in curves.items() if not any(_missing(part, seed, *pair, outside))}
    if not found:
        return JudgedPart(part=part, estimate=None, seeds=(), missing=tuple(missing))
    never: tuple[int, ...] = ()
    if part.measure is Measure.SOLVED:
        estimate = seeded_difference(
            [[*paired_outcomes(base[-1], arm[-1], part.tasks, outside)] for arm, base in found.values()]
        )
    else:
        ratios = [_log_ratio(part, arm, base, outside, seed) for seed, (arm, base) in found.items()]
        by_seed = tuple(float(each.value) for each in ratios)
        drawn = np.mean([each.drawn for each in ratios], axis=0)
        estimate = SeededEstimate(value=math.fsum(by_seed) / len(by_seed), by_seed=by_seed, drawn=drawn)
        never = tuple(seed for seed, each in zip(found, ratios, strict=True) if not each.is_reached)
    return JudgedPart(part=part, estimate=estimate, seeds=tuple(found), missing=tuple(missing), never=never)


def _missing(
    part: ClaimPart,
    seed: int,
    arm: Sequence[UnitEvaluation],
    baseline: Sequence[UnitEvaluation],
    outside: Collection[str],
) -> list[str]:
    """What a seed lacks for a part, in sentences; empty if it lacks nothing."""
    lacking = [name for name, curve in ((part.arm, arm), (part.baseline, baseline)) if not curve]
    if lacking:
        return [f"{name}, seed {seed}, was not run" for name in lacking]
    groups = groups_of(arm[-1].solved, part.tasks, outside)
    if groups and all(_known([*arm, *baseline], group) for group in groups):
        return []
    return [f"{part.arm} and {part.baseline}, seed {seed}, have no {part.tasks} tasks whose outcomes both know"]


def groups_of(solved: Solved, tasks: Tasks, outside: Collection[str]) -> list[str]:
    """Names of the groups of held-out tasks that a claim is about."""
    return sorted(group for group in solved if (group in outside) is (tasks is Tasks.OUTSIDE))


def paired_outcomes(
    baseline: UnitEvaluation, arm: UnitEvaluation, tasks: Tasks, outside: Collection[str]
) -> list[tuple[list[float], list[float]]]:
    """[num_groups] outcomes of both arms, [num_tasks] each, on the tasks whose outcome is known of both."""
    pairs = []
    for group in groups_of(arm.solved, tasks, outside):
        both = _known([baseline, arm], group)
        pairs.append(([float(row[0]) for row in both], [float(row[1]) for row in both]))
    return pairs


def _known(evaluations: Sequence[UnitEvaluation], group: str) -> list[list[bool]]:
    """[num_tasks, num_evaluations] outcomes of the tasks of a group whose outcome all of them know."""
    columns = [each.solved.get(group, {}) for each in evaluations]
    shared = sorted(set.intersection(*(set(column) for column in columns)))
    rows = [[column[task] for column in columns] for task in shared]
    return [[solved for solved in row if solved is not None] for row in rows if None not in row]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogRatio:
    value: float
    drawn: NDArray[np.float64]
    is_reached: bool


def _log_ratio(
    part: ClaimPart,
    arm: Sequence[UnitEvaluation],
    baseline: Sequence[UnitEvaluation],
    outside: Collection[str],
    stream: int,
) -> _LogRatio:
    """The logarithm of the cost at which the baseline reaches the arm's final accuracy over that of the arm.

    Both count at the first evaluation whose highest accuracy so far is at the level. Draws of tasks draw both curves.
    """
    evaluations, groups = [*arm, *baseline], groups_of(arm[-1].solved, part.tasks, outside)
    outcomes = [np.array(_known(evaluations, group), dtype=float) for group in groups]
    means = [rows.mean(axis=0, keepdims=True) for rows in outcomes]
    drawn = [bootstrap_means(rows, 1000 * stream + number) for number, rows in enumerate(outcomes)]
    costs = [np.array([_cost(each, part.measure) for each in curve]) for curve in (arm, baseline)]
    value, is_reached = _log_ratios(np.mean(means, axis=0), *costs)
    return _LogRatio(
        value=float(value[0]), drawn=_log_ratios(np.mean(drawn, axis=0), *costs)[0], is_reached=bool(is_reached[0])
    )


def _log_ratios(
    accuracies: NDArray[np.float64], arm_costs: NDArray[np.float64], costs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[num_curves] logarithms, and whether the baseline reaches the level; where it never does, all it spent counts."""
    own, other = accuracies[:, : len(arm_costs)], accuracies[:, len(arm_costs) :]
    level = own.max(axis=1)
    position = first_reaching(other, level)
    spent = np.where(position < 0, costs[-1], costs[position])
    return np.log(spent / arm_costs[first_reaching(own, level)]), position >= 0


def _cost(evaluation: UnitEvaluation, measure: Measure) -> float:
    if measure is Measure.SECONDS:
        return evaluation.seconds
    return evaluation.turns + (evaluation.profile_turns if measure is Measure.TURNS_WITH_PROFILE else 0)
