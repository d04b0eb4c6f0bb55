"""Criteria and a judge's points for each -> the score of a report, and which criteria of a query stay active.

Sources: Rubrics as Rewards (arXiv:2507.17746) and RLER of DR Tulu (arXiv:2511.19399, `longform_rubric_rewards.py`).
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from statistics import pstdev
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from verl_pivot.errors import DataError
from verl_pivot.validation import Options, first_problem

Scale = Literal["dr_tulu", "binary", "overall"]
"""
dr_tulu: 0, 1 or 2 points for each criterion, halved; sum of weight * score / max(sum of the weights above 0, 1).
binary: 0 or 1 point for each criterion; sum of weight * score / sum of all weights (Rubrics as Rewards, explicit).
overall: one grade from 1 to 10 for all criteria together, as (grade - 1) / 9 (Rubrics as Rewards, implicit).
"""
MOST_POINTS: Mapping[Scale, int] = {"dr_tulu": 2, "binary": 1}
_MAX_CRITERIA = 64
_MAX_INACTIVE = 100
"""Largest number of inactive criteria that are kept for a query; the oldest are forgotten first."""


class Criterion(Options):
    """One thing that a report is judged by."""

    text: Annotated[str, Field(min_length=1, max_length=2000)]
    weight: Annotated[float, Field(ge=-1000.0, le=1000.0, allow_inf_nan=False)] = 1.0
    id: Annotated[str, Field(max_length=64)] = ""
    """Name of the criterion in dumps; "" for a digest of its text."""

    @model_validator(mode="after")
    def _check(self) -> "Criterion":
        if not any(character.isalnum() for character in self.text):
            raise ValueError("the text of a criterion has no letter and no digit")
        return self

    @property
    def name(self) -> str:
        return self.id or sha256(words(self.text).encode()).hexdigest()[:12]


class EvolvingCriterion(Options):
    """A criterion that a model wrote while the policy trained, and its present state."""

    id: str
    text: str
    weight: float
    born: int
    """Training step in which it was written."""
    spread: float | None = None
    """Standard deviation of its scores over the last group that was judged by it; None before the first group."""
    is_active: bool = True

    def as_criterion(self) -> Criterion:
        return Criterion(text=self.text, weight=self.weight, id=self.id)


_CRITERIA: TypeAdapter[tuple[Criterion, ...]] = TypeAdapter(tuple[Criterion, ...])


def parse_criteria(written: object, scale: Scale) -> tuple[Criterion, ...]:
    """The criteria of a row; none if it has no such column.

    Raises:
        DataError: If they repeat or contradict each other, or no report could score above 0 by them.
    """
    try:
        criteria = _CRITERIA.validate_python([] if written is None else written)
    except ValidationError as error:
        raise DataError(f"criteria: {first_problem(error)}; it must be a list of text and weight") from error
    if len(criteria) > _MAX_CRITERIA:
        raise DataError(f"criteria: {len(criteria)} are more than {_MAX_CRITERIA}: leave some out")
    texts: dict[str, Criterion] = {}
    for each in criteria:
        if (other := texts.setdefault(words(each.text), each)) is not each:
            how = "contradict each other" if other.weight * each.weight < 0 else "are the same"
            raise DataError(f"criteria: two criteria {how} ({each.text[:80]!r}): leave one out")
        if each.weight == 0.0:
            raise DataError(f"criteria: {each.text[:80]!r} has weight 0, which pays nothing: leave it out")
    if len({each.name for each in criteria}) < len(criteria):
        raise DataError("criteria: two criteria have the same id: give each an id of its own, or none")
    total = math.fsum(each.weight for each in criteria)
    if criteria and (all(each.weight < 0 for each in criteria) or (scale == "binary" and total <= 0)):
        raise DataError(
            "criteria: no report can score above 0: add a criterion with a weight above 0, or raise weights"
        )
    return criteria


def rubric_score(points: Sequence[int], criteria: Sequence[Criterion], scale: Scale) -> float:
    """Score of a report.

    Args:
        points: [num_criteria] 0, 1 or 2 with `dr_tulu`, 0 or 1 with `binary`; with `overall` one grade from 1 to 10.
        criteria: Criteria that the report was judged by.
        scale: How points become a score.

    Example:
        rubric_score([2, 1], [Criterion(text="a"), Criterion(text="b", weight=-1)], "dr_tulu")  # 1 - 0.5 = 0.5
    """
    if scale == "overall":
        (grade,) = points
        return (grade - 1) / 9
    most = MOST_POINTS[scale]
    earned = math.fsum(each.weight * got / most for each, got in zip(criteria, points, strict=True))
    if scale == "binary":
        return earned / math.fsum(each.weight for each in criteria)
    return earned / max(math.fsum(each.weight for each in criteria if each.weight > 0), 1.0)


def strict_points(points: Sequence[int], criteria: Sequence[Criterion], strictness: float) -> list[int]:
    """Points in which a criterion that is met in part counts as met or not met, for a loose-to-strict schedule.

    At strictness 0 all such criteria count for the report, and at 1 all count against it: one of negative weight, which
    says what a report must not do, counts as not met at 0, and as met at 1. In between, this share of them counts
    against the report, the first ones in order. Neither DR Tulu's paper nor its code has such a schedule.

    Args:
        points: [num_criteria] 0, 1 or 2.
        criteria: Criteria that the points are for.
        strictness: From 0 to 1.
    """
    halves = [place for place, got in enumerate(points) if got == 1]
    num_strict = math.floor(strictness * len(halves) + 0.5)
    lost = set(halves[:num_strict])
    return [
        (2 if (place in lost) == (each.weight < 0) else 0) if got == 1 else got
        for place, (got, each) in enumerate(zip(points, criteria, strict=True))
    ]


def strictness_at(step: int, schedule: tuple[int, int] | None) -> float | None:
    """Strictness in a step: 0 up to the first step of the schedule, 1 from its last step on; None without one."""
    if schedule is None:
        return None
    first, last = schedule
    return min(max((step - first) / (last - first), 0.0), 1.0)


def words(text: str) -> str:
    """Words of a text; two criteria with equal words are the same."""
    return " ".join("".join(each if each.isalnum() else " " for each in text.casefold()).split())


def added(
    buffer: Sequence[EvolvingCriterion], new: Sequence[Criterion], fixed: Sequence[Criterion], step: int
) -> list[EvolvingCriterion]:
    """The buffer with the new criteria appended, without those whose words another criterion has.

    Only the words count, not the weight: a criterion and the same text with the opposite weight would cancel each
    other, and a weight whose sign changes from group to group would pay for the opposite each time.
    """
    kept = list(buffer)
    known = {words(each.text) for each in buffer} | {words(each.text) for each in fixed}
    ids = {each.id for each in buffer} | {each.name for each in fixed}
    for each in new:
        if words(each.text) in known:
            continue
        known.add(words(each.text))
        name = each.name
        while name in ids:
            name = sha256(name.encode()).hexdigest()[:12]
        ids.add(name)
        kept.append(EvolvingCriterion(id=name, text=each.text, weight=each.weight, born=step))
    return kept


def pruned(
    buffer: Sequence[EvolvingCriterion], scores: Mapping[str, Sequence[float]], max_active: int
) -> list[EvolvingCriterion]:
    """The buffer after a group was scored.

    A criterion whose scores do not differ over the group becomes inactive. If more than `max_active` criteria are
    active, those with the largest spread stay active, and of equal ones the older. Criteria that were never scored stay
    active in any case. Of the inactive ones, the 100 that were written last are kept.

    Args:
        buffer: Criteria in the order in which they were written.
        scores: {id: [num_rollouts] scores in [0, 1]} of the criteria that the judge was asked about.
        max_active: Largest number of active criteria; those that were never scored count, but never become inactive.
    """
    measured = [
        each.model_copy(update={"spread": spread, "is_active": each.is_active and spread > 0.0})
        if each.id in scores and (spread := spread_of(scores[each.id])) is not None
        else each
        for each in buffer
    ]
    active = [(-(each.spread or 0.0), place) for place, each in enumerate(measured) if each.is_active and each.spread]
    num_new = sum(each.is_active and each.spread is None for each in measured)
    lost = {place for _, place in sorted(active)[max(max_active - num_new, 0) :]}
    kept = [
        each.model_copy(update={"is_active": False}) if place in lost else each for place, each in enumerate(measured)
    ]
    forgotten = set([place for place, each in enumerate(kept) if not each.is_active][:-_MAX_INACTIVE])
    return [each for place, each in enumerate(kept) if place not in forgotten]


def spread_of(scores: Sequence[float]) -> float | None:
    """Standard deviation of the scores over a group; None for fewer than two scores."""
    if len(scores) < 2:
        return None
    return pstdev(scores) if len(set(scores)) > 1 else 0.0
