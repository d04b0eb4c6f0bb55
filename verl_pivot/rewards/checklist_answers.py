"""A judge's answer -> the items of a checklist, or the states of these items, or the probabilities of the states."""

import math
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from verl_pivot.engines.chat import ChatAnswer, LikelyToken, TokenLogprob
from verl_pivot.rewards.checklist import MAX_ITEMS, ChecklistForm, ItemState, StateOdds, checked_items
from verl_pivot.rewards.principle_answers import InvalidAnswerError, decoded_answer
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options, first_problem

NUM_ALTERNATIVES = 10
"""Number of likeliest tokens whose logprobs a server returns for each token of an answer, as in the released code."""
_STATE = "|".join(state.value for state in ItemState)
_JSON_STATE = re.compile(rf'"state"\s*:\s*"({_STATE})"')
_EVALUATION = "CHECKLIST EVALUATION:"
_LINE_STATE = re.compile(rf"^[ \t*-]*Checklist[ \t]+(\d{{1,3}})[ \t*]*:[ \t*]*({_STATE})\b", re.MULTILINE)
_LISTS = "[CHECKLISTS]"
_LINE_ITEM = re.compile(r"^[ \t*]*Checklist[ \t]+\d{1,3}[ \t*]*:[ \t]*(.*)$", re.MULTILINE)
_LINE_GOAL = re.compile(r"^[ \t]*-[ \t]*Goal:[ \t]*(.*)$", re.MULTILINE)
_BEFORE_LETTERS = re.compile(r"^[^A-Za-z]+")


class WrittenChecklist(Options):
    """The judge's answer to the question for a checklist."""

    analysis: str
    items: Annotated[list[str], Field(min_length=1, max_length=MAX_ITEMS)]


class CheckedItem(Options):
    """The judge's answer about one item."""

    number: int
    """Number of the item in the question, from 1."""
    reason: str
    state: ItemState


class CheckingAnswer(Options):
    """The judge's answer about all items after a turn."""

    items: Annotated[list[CheckedItem], Field(min_length=1, max_length=MAX_ITEMS)]


_WRITTEN: TypeAdapter[WrittenChecklist] = TypeAdapter(WrittenChecklist)
_CHECKED: TypeAdapter[CheckingAnswer] = TypeAdapter(CheckingAnswer)


def writing_schema(form: ChecklistForm) -> JsonObject | None:
    """JSON schema of the answer with a checklist; None for a form that is not JSON."""
    return WrittenChecklist.model_json_schema() if form == "checklist" else None


def checking_schema(form: ChecklistForm) -> JsonObject | None:
    """JSON schema of the answer about a checklist's items; None for a form that is not JSON."""
    return CheckingAnswer.model_json_schema() if form == "checklist" else None


def items_of_answer(text: str, form: ChecklistForm) -> tuple[str, ...]:
    """Items of the checklist that a judge wrote.

    Raises:
        InvalidAnswerError: If the answer does not have this form, or its checklist is not valid.
    """
    items = _written_lines(text) if form == "checklist_released" else _read(_WRITTEN, decoded_answer(text)).items
    try:
        return checked_items(items)
    except ValueError as error:
        raise InvalidAnswerError(str(error)) from error


def states_of_answer(text: str, num_items: int, form: ChecklistForm) -> list[ItemState]:
    """[num_items] states of a checklist's items, from the judge's answer.

    Raises:
        InvalidAnswerError: If the answer does not have this form, or does not hold every item once and in order.
    """
    if form == "checklist_released":
        start = text.rfind(_EVALUATION)
        if start < 0:
            raise InvalidAnswerError(f"it has no {_EVALUATION}")
        found = [(int(line[1]), ItemState(line[2])) for line in _LINE_STATE.finditer(text, start)]
    else:
        answer = _read(_CHECKED, decoded_answer(text))
        found = [(item.number, item.state) for item in answer.items]
    if [number for number, _ in found] != list(range(1, num_items + 1)):
        raise InvalidAnswerError(f"it has the items {[number for number, _ in found][:30]}, not 1 to {num_items}")
    return [state for _, state in found]


def odds_of_answer(answer: ChatAnswer, states: Sequence[ItemState], form: ChecklistForm) -> list[StateOdds]:
    """[num_items] probabilities of each item's states, from the logprobs of the token with which its state begins.

    The tokens may begin with reasoning that the answer's text does not hold, so that only the last states are read.

    Args:
        answer: The answer, with its logprobs.
        states: [num_items] states in the answer's text.
        form: Form of the answer.

    Raises:
        InvalidAnswerError: If the answer's tokens do not spell these states, or the logprobs of a state are too low.
    """
    text = "".join(token.token for token in answer.logprobs)
    pattern, group = (_LINE_STATE, 2) if form == "checklist_released" else (_JSON_STATE, 1)
    found = list(pattern.finditer(text))[-len(states) :]
    if [each[group] for each in found] != [state.value for state in states]:
        raise InvalidAnswerError("its tokens with logprobs do not spell the states in its text")
    ends = list(accumulate(len(token.token) for token in answer.logprobs))
    return [_odds(_token_at(answer.logprobs, ends, each.start(group))) for each in found]


def _token_at(tokens: Sequence[TokenLogprob], ends: Sequence[int], place: int) -> TokenLogprob:
    """Token that holds the letter at a position of the text.

    Args:
        tokens: [num_tokens]
        ends: [num_tokens] position right after each token.
        place: Position of the letter.
    """
    return next(token for token, end in zip(tokens, ends, strict=True) if end > place)


def _odds(token: TokenLogprob) -> StateOdds:
    """Probabilities of the states: those of the token and of its alternatives, summed by the state that each begins."""
    likely = {each.token: each.logprob for each in (LikelyToken(token.token, token.logprob), *token.top_logprobs)}
    sums = dict.fromkeys(ItemState, 0.0)
    for text, logprob in likely.items():
        if (state := _state_begun(text)) is not None:
            sums[state] += math.exp(min(logprob, 0.0))
    total = math.fsum(sums.values())
    if not total > 0.0:
        raise InvalidAnswerError("the logprobs of a state are too low to be told apart")
    return StateOdds(*(sums[state] / total for state in (ItemState.YES, ItemState.IN_PROGRESS, ItemState.NO)))


def _state_begun(token: str) -> ItemState | None:
    """State whose name begins with the token's letters, or with which these letters begin; None if there is none."""
    letters = _BEFORE_LETTERS.sub("", token).casefold()
    if not letters:
        return None
    states = {state: state.value.casefold() for state in ItemState}
    return next((state for state, name in states.items() if name.startswith(letters) or _begins(letters, name)), None)


def _begins(letters: str, name: str) -> bool:
    """Whether a text begins with the name and has no letter after it; a quotation mark may follow, for example."""
    return letters.startswith(name) and not letters[len(name) : len(name) + 1].isalpha()


def _written_lines(text: str) -> list[str]:
    """Items of a checklist in the released form, each as its title and its goal."""
    start = text.rfind(_LISTS)
    if start < 0:
        raise InvalidAnswerError(f"it has no {_LISTS}")
    titles = list(_LINE_ITEM.finditer(text, start))
    items = []
    for number, title in enumerate(titles):
        end = titles[number + 1].start() if number + 1 < len(titles) else len(text)
        goal = _LINE_GOAL.search(text, title.end(), end)
        items.append(title[1].strip() if goal is None else f"{title[1].strip()}: {goal[1].strip()}")
    return items


def _read(form: TypeAdapter[Any], written: Any) -> Any:
    """Decoded answer as an object of the class that it should have.

    Raises:
        InvalidAnswerError: If the answer does not have this form.
    """
    try:
        return form.validate_python(written)
    except ValidationError as error:
        raise InvalidAnswerError(first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidAnswerError(f"it cannot be read: {error}") from error
