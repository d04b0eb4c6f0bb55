"""RubricGroup: the finished reports of one query -> a score for each, and the query's criteria for the next time."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from verl_pivot.data.step_state import StepState
from verl_pivot.errors import VerifierError
from verl_pivot.rewards.rubric_judge import JudgedReport, RubricJudge
from verl_pivot.rewards.rubric_settings import RubricSettings
from verl_pivot.rewards.rubrics import (
    MOST_POINTS,
    Criterion,
    EvolvingCriterion,
    added,
    pruned,
    rubric_score,
    spread_of,
    strict_points,
    strictness_at,
)
from verl_pivot.rewards.turn_judge import all_or_none
from verl_pivot.verifiers.judge_client import UnansweredQuestionError


class QueryReport(NamedTuple):
    """One finished rollout of a query."""

    query: str
    """Digest of the prompt, under which its criteria are kept."""
    step: int
    fixed: tuple[Criterion, ...]
    """Criteria of the row, which always count."""
    report: JudgedReport


class ScoredCriterion(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion of one rollout in a dump."""

    id: str
    text: str
    weight: float
    points: int | None
    """None where the report got one grade for all criteria together."""
    born: int | None = None
    """Training step in which the criterion was written; None for a criterion of the row."""
    spread: float | None = None
    """Standard deviation of the criterion's scores over the group; None if fewer than two reports were scored together,
    as in validation and where criteria do not evolve."""


class ScoredReport(msgspec.Struct, frozen=True, kw_only=True):
    """Score of one rollout, and the criteria that it was scored by."""

    score: float
    criteria: tuple[ScoredCriterion, ...]
    is_unwritten: bool = False
    """Whether the model was asked for new criteria and gave no valid ones, so that only the existing ones counted."""

    def as_text(self) -> str:
        return msgspec.json.encode(self).decode()


class RubricGroup:
    """Scores the reports of groups, and keeps the criteria that evolve."""

    def __init__(self, settings: RubricSettings, judge: RubricJudge, state: StepState | None) -> None:
        """Score by fixed criteria alone where `state` is None."""
        self._settings, self._judge, self._state = settings, judge, state

    async def scored(self, group: Sequence[QueryReport]) -> list[ScoredReport | UnansweredQuestionError]:
        """[num_reports] scores of the reports of one query, or for a report the reason why the judge decides nothing.

        Raises:
            VerifierError: If the judge cannot be reached or keeps failing, or there is no criterion.
            ConfigError: If the judge refuses every question.
            StateError: If the criteria cannot be kept.
        """
        first = group[0]
        buffer = self._buffer(first.query)
        new = await self._written(group, buffer)
        grown = added(buffer, new or [], first.fixed, first.step)
        evolving = [each for each in grown if each.is_active]
        criteria = [*first.fixed, *(each.as_criterion() for each in evolving)]
        if not criteria:
            raise VerifierError("there are no criteria: the row has none, and the model wrote none")
        answered = await all_or_none([self._points(each.report, criteria, first.step) for each in group])
        decided = [each for each in answered if not isinstance(each, UnansweredQuestionError)]
        scored = iter(self._reports(first, criteria, new, decided) if decided else [])
        return [each if isinstance(each, UnansweredQuestionError) else next(scored) for each in answered]

    async def _points(
        self, report: JudgedReport, criteria: Sequence[Criterion], step: int
    ) -> list[int] | UnansweredQuestionError:
        """Points of a report by the schedule of strictness, or why the judge does not decide about this report."""
        try:
            points = await self._judge.points(report, criteria)
        except UnansweredQuestionError as error:
            return error
        strictness = strictness_at(step, self._settings.strictness)
        return points if strictness is None else strict_points(points, criteria, strictness)

    def _reports(
        self,
        first: QueryReport,
        criteria: Sequence[Criterion],
        new: Sequence[Criterion] | None,
        given: Sequence[list[int]],
    ) -> list[ScoredReport]:
        """Scores of the decided reports; the query's criteria are kept for the next time.

        Args:
            first: Any report of the query.
            criteria: Criteria that all reports were judged by.
            new: Those of them that the model wrote for this group; None if it was not asked.
            given: [num_reports][num_criteria] points.
        """
        scores = [rubric_score(each, criteria, self._settings.scale) for each in given]
        if self._settings.scale == "overall":  # one grade says nothing about a single criterion
            shown = tuple(_shown(each, None, {}, ()) for each in criteria)
            return [ScoredReport(score=score, criteria=shown) for score in scores]
        most = MOST_POINTS[self._settings.scale]
        columns = {each.name: [row[place] / most for row in given] for place, each in enumerate(criteria)}
        born = {each.id: each.born for each in self._keep(first, new or [], columns)}
        return [
            ScoredReport(
                score=score,
                criteria=tuple(
                    _shown(each, got, born, columns[each.name]) for each, got in zip(criteria, row, strict=True)
                ),
                is_unwritten=new is not None and not new,
            )
            for row, score in zip(given, scores, strict=True)
        ]

    async def _written(
        self, group: Sequence[QueryReport], buffer: Sequence[EvolvingCriterion]
    ) -> list[Criterion] | None:
        """New criteria; None if criteria do not evolve, or all reports have the same text."""
        if self._state is None or len({each.report.text for each in group}) < 2:
            return None
        return await self._judge.written([each.report for each in group], group[0].fixed, buffer)

    def _buffer(self, query: str) -> list[EvolvingCriterion]:
        entry = None if self._state is None else self._state.read(query)
        return [] if entry is None else _read(entry.value)

    def _keep(
        self, first: QueryReport, new: Sequence[Criterion], columns: dict[str, list[float]]
    ) -> list[EvolvingCriterion]:
        """Store and return the query's criteria after the group; repeated if another group changed them meanwhile."""
        if self._state is None:
            return []
        while True:
            entry = self._state.read(first.query)
            before = [] if entry is None else _read(entry.value)
            after = pruned(added(before, new, first.fixed, first.step), columns, self._settings.max_active)
            value: Any = [each.model_dump() for each in after]
            version = 0 if entry is None else entry.version
            if after == before or self._state.write(first.query, value, step=first.step, version=version):
                return after


def _read(value: Any) -> list[EvolvingCriterion]:
    return [EvolvingCriterion.model_validate(each) for each in value]


def _shown(
    criterion: Criterion, points: int | None, born: Mapping[str, int], scores: Sequence[float]
) -> ScoredCriterion:
    return ScoredCriterion(
        id=criterion.name,
        text=criterion.text,
        weight=criterion.weight,
        points=points,
        born=born.get(criterion.name),
        spread=spread_of(scores),
    )
