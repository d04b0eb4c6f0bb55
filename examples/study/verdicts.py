"""Per-task outcomes and claims -> estimates, p-values and verdicts; whatever is missing is named."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.study.claims import Claim, ClaimPart, Claims, Measure, Tasks
from examples.study.outcomes import Solved, StudyResults, UnitEvaluation, accuracy
from verl_pivot.errors import DataError
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

BASE = "base"
"""Name of the arm that trains nothing."""
LEAST_KNOWN = 0.98
"""Share of a group's tasks of which both arms must know the outcome; at the others the system failed."""
_TAIL = 0.025
"""Share of the draws above the interval over tasks."""


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
    is_lower_bound: bool = False
    """Whether the estimate, or the upper end of its interval, rests on costs of a baseline that never reached it: the
    value may be any higher one."""

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
    verdict = verdict_of(complete, adjusted_p, alpha)
    if verdict is not ClaimVerdict.DOES_NOT_HOLD:
        return verdict
    known = [each for each, part in zip(complete, parts, strict=True) if not part.is_lower_bound]
    return verdict if known and verdict_of(known, adjusted_p, alpha) is verdict else ClaimVerdict.UNDECIDED


def _judge_part(part: ClaimPart, results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> JudgedPart:
    curves = {seed: (results.curve(part.arm, seed), results.curve(part.baseline, seed)) for seed in seeds}
    missing = [text for seed, (arm, base) in curves.items() for text in _missing(part, seed, arm, base, outside)]
    found = {seed: pair for seed, pair in curves.items() if not any(_missing(part, seed, *pair, outside))}
    if part.measure.is_ratio:
        missing += [text for seed in found if (text := _no_gain(part, seed, results, outside))]
    if not found:
        return JudgedPart(part=part, estimate=None, seeds=(), missing=tuple(missing))
    never: tuple[int, ...] = ()
    is_lower_bound = False
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
        is_lower_bound = bool(never) or any(each.unreached > _TAIL for each in ratios)
    return JudgedPart(
        part=part,
        estimate=estimate,
        seeds=tuple(found),
        missing=tuple(missing),
        never=never,
        is_lower_bound=is_lower_bound,
    )


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
    least = min((_share_known([*arm, *baseline], group) for group in groups), default=0.0)
    if least >= LEAST_KNOWN:
        return []
    return [
        f"{part.arm} and {part.baseline}, seed {seed}, both know the outcomes of {least:.1%} of the {part.tasks} tasks "
        f"of a group, and {LEAST_KNOWN:.0%} are needed"
    ]


def _share_known(evaluations: Sequence[UnitEvaluation], group: str) -> float:
    """Share of the tasks of a group whose outcome all evaluations know, of those that any has."""
    every = set[str]().union(*(each.solved.get(group, {}) for each in evaluations))
    return len(_known(evaluations, group)) / len(every) if every else 0.0


def _no_gain(part: ClaimPart, seed: int, results: StudyResults, outside: Collection[str]) -> str:
    """A sentence if the arm does not solve more than the base policy, so that its costs say nothing; else empty."""
    (start,) = results.curve(BASE, seed)[-1:] or (None,)
    if start is None:
        return f"{BASE}, seed {seed}, was not run"
    groups = groups_of(start.solved, part.tasks, outside)
    shares = [accuracy(each, groups) for each in (start, *results.curve(part.arm, seed))]
    before, *after = (0.0 if share is None else share for share in shares)
    return "" if max(after) > before else f"{part.arm}, seed {seed}, solves no more than the base policy"


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
    unreached: float
    """Share of the draws in which the baseline never reaches the level."""


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
    values, are_reached = _log_ratios(np.mean(drawn, axis=0), *costs)
    return _LogRatio(
        value=float(value[0]),
        drawn=values,
        is_reached=bool(is_reached[0]),
        unreached=1.0 - float(are_reached.mean()),
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
    """What was spent until an evaluation.

    Raises:
        DataError: If that is nothing, of which no ratio can be taken.
    """
    cost = evaluation.seconds if measure is Measure.SECONDS else float(evaluation.turns)
    if not 0.0 < cost < math.inf:
        where = f"{evaluation.arm}, seed {evaluation.seed}, step {evaluation.step}"
        raise DataError(f"{where} has {cost:g} {measure.replace('_', ' ')}: remove the unit's folder, and run it again")
    return cost + (evaluation.profile_turns if measure is Measure.TURNS_WITH_PROFILE else 0)
