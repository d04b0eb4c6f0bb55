"""A judge's answer about a turn -> a score, in one of two forms."""

import json
import re
from collections import Counter
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from verl_pivot.data.json_values import object_of_unique_names
from verl_pivot.rewards.principles import Form, PrincipleSet, ShownTurn, words_of
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options, first_problem
from verl_pivot.verifiers.judge_client import without_wrapping

_MAX_ANSWER_CHARS = 200_000
_OPEN = "<final_score>"
_PLACES = ("first", "second")
"""Names of the two parts of an answer about a pair."""
_SCORE_TAG = re.compile(r"<final_score>\s*(\d{1,9})\s*,\s*(\d{1,9})\s*</final_score>", re.ASCII)

_LAST_QUOTED = re.compile(r"""(?<= )(?:'(?:[^'\\]|\\.)*+'?|"(?:[^"\\]|\\.)*+"?)$""")


class InvalidAnswerError(ValueError):
    """Error for an answer of the judge that is not valid; the message says why."""


def reason_to_count(reason: str) -> str:
    """A reason without its quotation from the judge's answer, so that equal mistakes are counted together.

    Example:
        reason_to_count("'query': the turn does not hold the quotation 'Bob'")
        # 'query': the turn does not hold the quotation ...
    """
    return _LAST_QUOTED.sub("...", reason)


class PrincipleScore(Options):
    """The judge's answer for one principle."""

    name: str
    quotation: str
    score: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    maximum: Annotated[float, Field(gt=0.0, le=10.0)]


class PrincipleAnswer(Options):
    """The judge's answer in the form `principles`."""

    principles: Annotated[list[PrincipleScore], Field(min_length=1)]


class BothAnswers(Options):
    """The judge's answer about two turns in the form `principles`."""

    first: PrincipleAnswer
    second: PrincipleAnswer


_SCORES: TypeAdapter[PrincipleAnswer] = TypeAdapter(PrincipleAnswer)


def answer_schema(form: Form) -> JsonObject | None:
    """JSON schema of the answer; None for a form that is not JSON."""
    return None if form == "released" else PrincipleAnswer.model_json_schema()


def pair_schema(form: Form) -> JsonObject | None:
    """JSON schema of the answer about two turns; None for a form that is not JSON."""
    return None if form == "released" else BothAnswers.model_json_schema()


def score_of_answer(text: str, turn: ShownTurn, principle_set: PrincipleSet) -> float:
    """Score in [0, 1] of a turn, from the judge's answer.

    Args:
        text: The answer, which was not cut off.
        turn: The turn that was asked about.
        principle_set: Principles and form that the judge was told.

    Raises:
        InvalidAnswerError: If the answer has no valid score.
    """
    if len(text) > _MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"it has {len(text)} characters")
    if principle_set.form == "released":
        return _released_score(text)
    return _principles_score(text, turn, principle_set)


def _released_score(text: str) -> float:
    """SCORE / MAX_SCORE of the last tag; earlier tags may be quotations from the turn."""
    last = text.rfind(_OPEN)
    if last < 0:
        raise InvalidAnswerError("it has no <final_score>")
    return _score_at(text, last)


def released_scores(text: str, number: int) -> list[float]:
    """SCORE / MAX_SCORE of each of the last `number` tags, in their order.

    Raises:
        InvalidAnswerError: If there are fewer tags than `number`, or one of them holds no valid score.
    """
    if len(text) > _MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"it has {len(text)} characters")
    places = [tag.start() for tag in re.finditer(re.escape(_OPEN), text)][-number:]
    if len(places) < number:
        raise InvalidAnswerError(f"it has {len(places)} of {number} <final_score>")
    return [_score_at(text, place) for place in places]


def _score_at(text: str, place: int) -> float:
    tag = _SCORE_TAG.match(text, place)
    if tag is None:
        raise InvalidAnswerError(f"there are no two whole numbers in {text[place : place + 80]!r}")
    score, maximum = int(tag[1]), int(tag[2])
    if maximum == 0 or score > maximum:
        raise InvalidAnswerError(f"a score of {score} with a maximum of {maximum}")
    return score / maximum


def _principles_score(text: str, turn: ShownTurn, principle_set: PrincipleSet) -> float:
    """Sum of all scores divided by the sum of all maxima."""
    return sum_of_scores(read_principles_answer(decoded_answer(text)), turn, principle_set)


def decoded_answer(text: str) -> Any:
    """Decoded JSON of an answer.

    Raises:
        InvalidAnswerError: If the answer is too long, is no JSON, or has an object with the same name twice.
    """
    if len(text) > _MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"it has {len(text)} characters")
    try:
        return json.loads(without_wrapping(text), object_pairs_hook=object_of_unique_names)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswerError(f"it is not JSON: {error}") from error


def read_principles_answer(written: Any) -> PrincipleAnswer:
    """An answer in the form `principles`, decoded.

    Raises:
        InvalidAnswerError: If the answer does not have this form.
    """
    try:
        return _SCORES.validate_python(written, strict=True)
    except ValidationError as error:
        raise InvalidAnswerError(first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidAnswerError(f"it cannot be read: {error}") from error


def sum_of_scores(answer: PrincipleAnswer, turn: ShownTurn, principle_set: PrincipleSet) -> float:
    """Score in [0, 1] of an answer about a turn.

    Raises:
        InvalidAnswerError: If the answer's principles, scores or quotations are not valid.
    """
    scores = answer.principles
    _check_names(Counter(each.name.strip() for each in scores), principle_set)
    words = words_of(turn.text)
    for each in scores:
        if each.score > each.maximum:
            raise InvalidAnswerError(f"{each.name!r}: a score of {each.score} with a maximum of {each.maximum}")
        if not (quotation := words_of(each.quotation)) or quotation not in words:
            raise InvalidAnswerError(f"{each.name!r}: the turn does not hold the quotation {each.quotation[:80]!r}")
    return sum(each.score for each in scores) / sum(each.maximum for each in scores)


def _check_names(names: Counter[str], principle_set: PrincipleSet) -> None:
    """Refuse answers that leave a principle out, name one twice, or add too many."""
    listed = {each.name for each in principle_set.principles}
    if missing := sorted(listed - names.keys()):
        raise InvalidAnswerError(f"the principle {missing[0]!r} is missing")
    if twice := sorted(name for name, number in names.items() if number > 1):
        raise InvalidAnswerError(f"the principle {twice[0]!r} occurs twice")
    if len(names) - len(listed) > principle_set.max_added:
        raise InvalidAnswerError(f"it adds {len(names) - len(listed)} principles, more than {principle_set.max_added}")


class PairScores(NamedTuple):
    """Scores in [0, 1] of two turns."""

    first: float
    second: float


def pair_scores(text: str, turns: tuple[ShownTurn, ShownTurn], principle_set: PrincipleSet) -> PairScores:
    """Scores of two turns, from the judge's answer.

    Args:
        text: The answer, which was not cut off.
        turns: The turns that were asked about, in the order in which they were shown.
        principle_set: Principles and form that the judge was told.

    Raises:
        InvalidAnswerError: If one of the scores is missing or not valid.
    """
    if principle_set.form == "released":
        return PairScores(*released_scores(text, 2))
    written = decoded_answer(text)
    if not isinstance(written, dict) or set(written) != set(_PLACES):
        raise InvalidAnswerError('it is not a JSON object with only "first" and "second"')
    first, second = (
        sum_of_scores(read_principles_answer(written[place]), turn, principle_set)
        for place, turn in zip(_PLACES, turns, strict=True)
    )
    return PairScores(first, second)
