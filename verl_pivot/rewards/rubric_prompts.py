"""Reports and criteria -> the questions that a judge is asked, and its answers -> points or new criteria."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from verl_pivot.engines.text_cut import Tokenizer, fit_together
from verl_pivot.rewards.principle_answers import InvalidAnswerError, decoded_answer
from verl_pivot.rewards.principles import FencedQuestion, fenced_question, harmless
from verl_pivot.rewards.rubrics import MOST_POINTS, Criterion, EvolvingCriterion, Scale, words
from verl_pivot.validation import Options, first_problem

_JSON: Final = "Answer only with the JSON object that is asked for."
_GRADE: Final = (
    "You grade a report that an assistant wrote for a task. You see the task, what its tools gave back, the report and "
    "the criteria. Judge by the criteria alone. Neither length nor confident words count, nor words that repeat a "
    "criterion without fulfilling it."
)
_WRITE: Final = (
    "You write criteria by which reports for one task can be told apart. You see the task, several reports, and the "
    "criteria there are. Write what the better reports do and the worse do not, or a way in which some only seem good."
)
_HOW: Final = {
    "dr_tulu": "Give each criterion 2 points if the report fulfils it, 1 if it does so in part, and 0 if it does not.",
    "binary": "Give each criterion 1 point if the report fulfils it, and 0 if it does not.",
}


class CriterionPoints(Options):
    number: int
    """Number of the criterion in the question, from 1."""
    points: Annotated[int, Field(ge=0, le=2)]


class PointsAnswer(Options):
    """Answer to `points_question`."""

    points: list[CriterionPoints]


class GradeAnswer(Options):
    """Answer to `points_question` with the scale `overall`."""

    grade: Annotated[int, Field(ge=1, le=10)]


class WrittenCriterion(Options):
    text: Annotated[str, Field(min_length=1, max_length=1000)]
    weight: Literal[1, -1]


class WrittenCriteria(Options):
    """Answer to `criteria_question`."""

    criteria: Annotated[list[WrittenCriterion], Field(min_length=1, max_length=5)]


def points_question(
    task: str,
    observed: str,
    report: str,
    criteria: Sequence[Criterion],
    scale: Scale,
    max_tokens: int,
    tokenizer: Tokenizer,
) -> FencedQuestion:
    """The question about one report.

    Args:
        task: Task that the policy was given.
        observed: Text that the tools returned, which is cut first.
        report: Text of the last turn, which is cut last.
        criteria: One criterion, or several.
        scale: How the judge answers.
        max_tokens: Largest number of tokens of task, observations and report together.
        tokenizer: Tokenizer that counts them.
    """
    texts = [harmless(task), harmless(observed), harmless(report)]
    shown = fit_together(texts, [1, 0, 2], max_tokens, tokenizer)
    titles = ("The task:", "What the tools gave back:", "The report:")
    listed = "\n".join(f"{number}. {harmless(each.text)}" for number, each in enumerate(criteria, 1))
    if scale == "overall":
        weighed = "\n".join(f"- {harmless(each.text)} (weight {each.weight:g})" for each in criteria)
        asked = f"The criteria:\n{weighed}\n\nGrade the report as a whole from 1 to 10 by them. "
        asked += 'A criterion of negative weight says what a report must not do. Answer {"grade": 1 to 10}.'
    else:
        form = f'{{"points": [{{"number": 1, "points": 0 to {MOST_POINTS[scale]}}}, ...]}}'
        asked = f"The criteria:\n{listed}\n\n{_HOW[scale]} Answer {form}, every number once."
    return fenced_question(_GRADE, _JSON, list(zip(titles, shown, strict=True)), asked)


def points_of(text: str, num_criteria: int, scale: Scale) -> list[int]:
    """[num_criteria] points, or with the scale `overall` one grade, from the judge's answer.

    Raises:
        InvalidAnswerError: If the answer does not give each criterion its points once.
    """
    written = decoded_answer(text)
    try:
        if scale == "overall":
            return [GradeAnswer.model_validate(written, strict=True).grade]
        answer = PointsAnswer.model_validate(written, strict=True)
    except ValidationError as error:
        raise InvalidAnswerError(first_problem(error)) from error
    numbers = [each.number for each in answer.points]
    if sorted(numbers) != list(range(1, num_criteria + 1)):
        raise InvalidAnswerError(f"it has points for the criteria {sorted(numbers)[:20]}, not for 1 to {num_criteria}")
    if high := [each.points for each in answer.points if each.points > MOST_POINTS[scale]]:
        raise InvalidAnswerError(f"{high[0]} points are more than {MOST_POINTS[scale]}")
    return [each.points for each in sorted(answer.points, key=lambda each: each.number)]


def criteria_question(
    task: str,
    reports: Sequence[str],
    fixed: Sequence[Criterion],
    buffer: Sequence[EvolvingCriterion],
    max_tokens: int,
    tokenizer: Tokenizer,
) -> FencedQuestion:
    """Question that asks for new criteria, about the distinct reports of a group, sorted by their texts.

    The task, each report and the list of criteria have equal shares of `max_tokens`. In a list that is too long, a note
    replaces inactive criteria, old ones first.
    """
    distinct = sorted({harmless(report) for report in reports})
    share = max_tokens // (len(distinct) + 2)
    texts = [("The task:", fit_together([harmless(task)], [0], share, tokenizer)[0])]
    for number, report in enumerate(distinct, 1):
        texts.append((f"Report {number}:", fit_together([report], [0], share, tokenizer)[0]))
    evolved = sorted(buffer, key=lambda each: not each.is_active)  # old inactive ones then stand in the middle
    known = [*(each.text for each in fixed), *(each.text for each in evolved)]
    listed = "\n".join(f"- {harmless(each)}" for each in known) or "none"
    texts.append(("The criteria so far:", fit_together([listed], [0], share, tokenizer)[0]))
    asked = (
        "Write 1 to 5 new criteria. Each stands for itself, can be checked on one report, and names no report. Its "
        "weight is 1 for what a report should do, and -1 for what it must not do. Write neither a criterion that is "
        'there already nor one and its opposite. Answer {"criteria": [{"text": "...", "weight": 1 or -1}, ...]}.'
    )
    return fenced_question(_WRITE, _JSON, texts, asked)


def criteria_of(text: str, fixed: Sequence[Criterion], buffer: Sequence[EvolvingCriterion]) -> list[Criterion]:
    """[1 to 5] new criteria from the model's answer.

    Raises:
        InvalidAnswerError: If the form is wrong, no criterion is new, or one stands there twice or with its opposite.
    """
    try:
        answer = WrittenCriteria.model_validate(decoded_answer(text), strict=True)
        made = [
            Criterion(text=" ".join(harmless(each.text).split()), weight=float(each.weight)) for each in answer.criteria
        ]
    except ValidationError as error:
        raise InvalidAnswerError(first_problem(error)) from error
    stems = [_without_denial(each.text) for each in made]
    if len(set(stems)) < len(stems):
        raise InvalidAnswerError("it has a criterion twice, or together with its opposite")
    known = {_without_denial(text) for text in (*(each.text for each in fixed), *(each.text for each in buffer))}
    new = [each for each, stem in zip(made, stems, strict=True) if stem not in known]
    if not new:
        raise InvalidAnswerError("it has no new criterion")
    return new


_DENIALS: Final = frozenset(
    ["not", "no", "never", "without", "does", "do", "doesn", "t", "don", "isn", "is", "are", "any", "avoids", "avoid"]
)


def _without_denial(text: str) -> str:
    """Words of a criterion without negations and final letters s, which are equal for a criterion and its opposite."""
    return " ".join(each.rstrip("s") for each in words(text).split() if each not in _DENIALS) or words(text)
