"""RubricJudge: reports and criteria -> points, and reports of a group -> new criteria, from a judge's endpoint."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from verl_pivot.engines.chat import response_format
from verl_pivot.engines.text_cut import Tokenizer
from verl_pivot.off_loop import run_off_loop
from verl_pivot.rewards.judge_endpoint import JudgeEndpoint
from verl_pivot.rewards.principles import FencedQuestion
from verl_pivot.rewards.rubric_prompts import (
    GradeAnswer,
    PointsAnswer,
    WrittenCriteria,
    criteria_of,
    criteria_question,
    points_of,
    points_question,
)
from verl_pivot.rewards.rubric_settings import RubricSettings
from verl_pivot.rewards.rubrics import Criterion, EvolvingCriterion
from verl_pivot.rewards.turn_judge import all_or_none
from verl_pivot.rewards.valid_answers import AskedForm, ReadAnswer, ValidAnswers
from verl_pivot.types import JsonObject
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.judge_client import UnansweredQuestionError

ValueT = TypeVar("ValueT")
_MAX_ANSWERS: Final = 16384
"""Number of questions whose points are kept in memory, for equal reports."""


class JudgedReport(NamedTuple):
    """One rollout as the judge sees it."""

    task: str
    """Task that the policy was given."""
    observed: str
    """Text that the policy's tools returned."""
    text: str
    """Text of the policy's last turn."""


_CONTROL = JudgedReport("Add 1 and 2.", "", "1 and 2 are 3.")
"""A harmless report: after a refusal, a question about it shows whether the judge refuses every question."""


class RubricJudge:
    """Gives points to reports, many at a time and each once, within one event loop.

    The judge is asked again after an invalid answer, with another seed. If it gives no valid answer or refuses the
    question, `points` raises and `written` returns no criteria.
    """

    def __init__(self, settings: RubricSettings, tokenizer: Tokenizer, *, num_workers: int = 1) -> None:
        """Open the cache; nothing is asked yet.

        Raises:
            ConfigError: If the cache cannot be opened, or the API key is not set.
        """
        self._settings, self._tokenizer = settings, tokenizer
        answer = GradeAnswer if settings.scale == "overall" else PointsAnswer
        self._points = self._asked_form("points", answer.model_json_schema())
        self._criteria = self._asked_form("criteria", WrittenCriteria.model_json_schema())
        self._endpoint = JudgeEndpoint(settings, {}, num_workers=num_workers)
        self._asking = ValidAnswers(self._endpoint, settings.invalid_retries, self._control)
        self._judged: AskedOnce[str, list[int]] = AskedOnce(_MAX_ANSWERS)

    async def close(self) -> None:
        await self._endpoint.close()

    async def points(self, report: JudgedReport, criteria: Sequence[Criterion]) -> list[int]:
        """[num_criteria] points of a report, or with the scale `overall` one grade.

        Raises:
            UnansweredQuestionError: If the judge refuses a question about this report, or gives no valid answer.
            VerifierError: If the judge cannot be reached or keeps failing.
            ConfigError: If it refuses every question.
        """
        asks_all = self._settings.asked == "together" or self._settings.scale == "overall"
        asked = [criteria] if asks_all else [[each] for each in criteria]
        given = await all_or_none([self._points_of(report, each) for each in asked])
        return [points for each in given for points in each]

    async def _points_of(self, report: JudgedReport, criteria: Sequence[Criterion]) -> list[int]:
        scale = self._settings.scale
        size = sum(map(len, report))
        question = await run_off_loop(size, self._question, report, criteria)
        return await self._judged.get(
            question.name, lambda: self._value(question, lambda text: points_of(text, len(criteria), scale))
        )

    async def _value(self, question: FencedQuestion, read: Callable[[str], list[int]]) -> list[int]:
        found = await self._ask(question, read, self._points)
        if found.value is None:
            how = "refuses a question" if found.is_refused else "gives no valid answer"
            raise UnansweredQuestionError(f"judge {self._settings.model} {how}: {found.cause}")
        return found.value

    def _question(self, report: JudgedReport, criteria: Sequence[Criterion]) -> FencedQuestion:
        settings = self._settings
        return points_question(*report, criteria, settings.scale, settings.max_question_tokens, self._tokenizer)

    async def written(
        self, reports: Sequence[JudgedReport], fixed: Sequence[Criterion], buffer: Sequence[EvolvingCriterion]
    ) -> list[Criterion]:
        """[0 to 5] new criteria that tell the reports of a group apart; none without a valid answer, or if refused.

        Raises:
            VerifierError: If the model cannot be reached or keeps failing.
            ConfigError: If it refuses every question.
        """
        texts = [report.text for report in reports]
        max_tokens = self._settings.max_question_tokens
        size = len(reports[0].task) + sum(map(len, texts)) + sum(len(each.text) for each in buffer)
        question = await run_off_loop(
            size, criteria_question, reports[0].task, texts, fixed, buffer, max_tokens, self._tokenizer
        )
        found = await self._ask(question, lambda text: criteria_of(text, fixed, buffer), self._criteria)
        return found.value or []

    async def _ask(
        self, question: FencedQuestion, read: Callable[[str], ValueT], form: AskedForm
    ) -> ReadAnswer[ValueT]:
        temperature = self._endpoint.temperature(0)
        return await self._asking.ask(question, lambda _, text: read(text), form, temperature=temperature)

    def _asked_form(self, name: str, schema: JsonObject) -> AskedForm:
        return AskedForm(parameters=response_format(self._settings.answer_format, name, schema))

    def _control(self) -> FencedQuestion:
        return self._question(_CONTROL, [Criterion(text="The sum is right.")])
