"""A turn of a trajectory -> the question that a judge is asked about it, and the judge's answer -> a score."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.data.json_values import object_of_unique_names
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options, first_problem
from verl_pivot.verifiers.judge_client import without_wrapping
from verl_pivot.verifiers.judge_prompts import Fence

Form = Literal["released", "principles"]
"""
released: an analysis, and a line with `<final_score>SCORE,MAX_SCORE</final_score>`, as published PPRMs answer.
principles: JSON with a score, a maximum and a quotation for each principle.
"""
FORMS: tuple[Form, ...] = ("released", "principles")
Fit = Callable[[Sequence[str], Sequence[int]], Sequence[str]]
"""(texts, positions in the order in which they may be cut) -> the texts, which fit together."""
_MAX_ANSWER_CHARS = 200_000
_OPEN = "<final_score>"
_SCORE_TAG = re.compile(r"<final_score>\s*(\d{1,9})\s*,\s*(\d{1,9})\s*</final_score>", re.ASCII)
_ANY_TAG = re.compile(r"<(?=\s*+(?:/\s*+)?(?:final_score|tool_call))", re.IGNORECASE)
_OBSERVATION = "What the tools gave back"
_TASK = (
    "You grade one turn of an assistant that works on a task in several turns, with the help of tools. You see the "
    "task, the turns before, and the turn to grade with what the tools gave back after it. Judge this turn alone: "
    "neither the turns before it nor what comes later. Its length says nothing about it."
)


class InvalidAnswerError(ValueError):
    """The judge's answer has no score that counts; the message says why."""


class Principle(Options):
    """One thing that a turn is judged by."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    text: Annotated[str, Field(min_length=1)]


class PrincipleScore(Options):
    """The judge's answer for one principle."""

    name: str
    quotation: str
    score: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    maximum: Annotated[float, Field(gt=0.0, le=10.0)]


class PrincipleAnswer(Options):
    """The judge's answer in the form `principles`."""

    principles: Annotated[list[PrincipleScore], Field(min_length=1)]


_SCORES: TypeAdapter[PrincipleAnswer] = TypeAdapter(PrincipleAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """One turn as a judge sees it."""

    text: str
    """Text of the policy."""
    observation: str = ""
    """What the tools gave back after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipleSet:
    """What a judge goes by, and how it answers."""

    form: Form
    principles: tuple[Principle, ...]
    max_added: int = 0
    """Most principles of its own that the judge may add; only in the form `principles`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuestion:
    """Question about one turn."""

    messages: list[JsonObject]
    name: str
    """Digest of the messages without the random words of their fences: equal for equal questions."""
    turn: ShownTurn
    fence_word: str

    @property
    def recorded_messages(self) -> list[JsonObject]:
        """The messages with a word of fences that follows from their name: for texts that were written before."""
        return [
            {**message, "content": str(message["content"]).replace(self.fence_word, self.name[:16])}
            for message in self.messages
        ]


def task_text(prompt: Sequence[Mapping[str, Any]]) -> str:
    """The prompt as text: what the policy was asked."""
    if len(prompt) == 1:
        return str(prompt[0].get("content") or "")
    return "\n\n".join(f"{message.get('role')}: {message.get('content') or ''}" for message in prompt)


def turn_question(
    task: str, earlier: Sequence[ShownTurn], turn: ShownTurn, principle_set: PrincipleSet, fit: Fit
) -> TurnQuestion:
    """The question about a turn.

    Args:
        task: What the policy was asked.
        earlier: The turns before.
        turn: The turn to judge.
        principle_set: What it is judged by.
        fit: Cuts texts that are too long: old turns first, then the task, this turn at last.
    """
    texts = [task, *(text for each in (*earlier, turn) for text in (each.text, each.observation))]
    old = [position for number in range(len(earlier)) for position in (2 * number + 2, 2 * number + 1)]
    shown = fit([_harmless(text) for text in texts], [*old, 0, len(texts) - 1, len(texts) - 2])
    fence = Fence()
    parts = [
        fence.around(title, text)
        for title, text in zip(_titles(len(earlier)), shown, strict=True)
        if text or not title.startswith(_OBSERVATION)
    ]
    answer, instructions = _instructions(principle_set)
    user = "\n\n".join((*parts, instructions))
    messages: list[JsonObject] = [{**fence.system(_TASK, answer)}, {"role": "user", "content": user}]
    name = sha256(json.dumps(messages).replace(fence.word, "fence").encode()).hexdigest()
    return TurnQuestion(messages=messages, name=name, turn=turn, fence_word=fence.word)


def _titles(num_earlier: int) -> list[str]:
    """What stands above the task, and above each turn and what the tools gave back after it."""
    before = [
        title
        for number in range(1, num_earlier + 1)
        for title in (f"Turn {number}:", f"{_OBSERVATION} after turn {number}:")
    ]
    return ["The task:", *before, "The turn to grade:", f"{_OBSERVATION} after it:"]


def _instructions(principle_set: PrincipleSet) -> tuple[str, str]:
    """What the judge answers with, for the system message, and the principles with the form of the answer."""
    listed = "\n".join(f"- {each.name}: {each.text}" for each in principle_set.principles)
    if principle_set.form == "released":
        return "Answer only with the two lines that are asked for.", (
            f"Grade the turn by these principles:\n{listed}\n\nWrite two lines. The first is your analysis, principle "
            "by principle. The second holds the sum of your scores and the sum of their maxima as whole numbers:\n"
            "Analysis: ...\nScores: <final_score>SCORE,MAX_SCORE</final_score>"
        )
    added = principle_set.max_added
    own = f" You may add up to {added} of your own that matter for this turn." if added else ""
    return "Answer only with the JSON object that is asked for.", (
        f"Grade the turn by these principles:\n{listed}\n\nEach of them stands in your answer once, under its name."
        f"{own} For each, quote the words of the turn to grade by which you judge it, letter by letter and from no "
        "other text; then give a score from 0 to a maximum of your choice, at most 10.\nAnswer "
        '{"principles": [{"name": "...", "quotation": "...", "score": ..., "maximum": ...}, ...]}.'
    )


def answer_schema(form: Form) -> JsonObject | None:
    """JSON schema of the answer; None for a form that is not JSON."""
    return None if form == "released" else PrincipleAnswer.model_json_schema()


def score_of_answer(text: str, turn: ShownTurn, principle_set: PrincipleSet) -> float:
    """Score in [0, 1] of a turn, from the judge's answer.

    Args:
        text: The answer, which was not cut off.
        turn: The turn that was asked about.
        principle_set: What the judge was told.

    Raises:
        InvalidAnswerError: If the answer has no score, or one that does not count.
    """
    if len(text) > _MAX_ANSWER_CHARS:
        raise InvalidAnswerError(f"it has {len(text)} characters")
    if principle_set.form == "released":
        return _released_score(text)
    return _principles_score(text, turn, principle_set)


def _released_score(text: str) -> float:
    """S / M of the last tag; earlier ones may be quoted from the turn."""
    last = text.rfind(_OPEN)
    if last < 0:
        raise InvalidAnswerError("it has no <final_score>")
    tag = _SCORE_TAG.match(text, last)
    if tag is None:
        raise InvalidAnswerError(f"{text[last : last + 80]!r} holds no two whole numbers")
    score, maximum = int(tag[1]), int(tag[2])
    if maximum == 0 or score > maximum:
        raise InvalidAnswerError(f"a score of {score} with a maximum of {maximum}")
    return score / maximum


def _principles_score(text: str, turn: ShownTurn, principle_set: PrincipleSet) -> float:
    """The sum of all scores by the sum of all maxima."""
    try:
        written = json.loads(without_wrapping(text), object_pairs_hook=object_of_unique_names)
        scores = _SCORES.validate_python(written, strict=True).principles
    except ValidationError as error:
        raise InvalidAnswerError(first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidAnswerError(f"it is no JSON: {error}") from error
    _check_names(Counter(each.name.strip() for each in scores), principle_set)
    words = _words(turn.text)
    for each in scores:
        if each.score > each.maximum:
            raise InvalidAnswerError(f"{each.name!r}: a score of {each.score} with a maximum of {each.maximum}")
        if not (quotation := _words(each.quotation)) or quotation not in words:
            raise InvalidAnswerError(f"{each.name!r}: the turn does not hold the quotation {each.quotation[:80]!r}")
    return sum(each.score for each in scores) / sum(each.maximum for each in scores)


def _check_names(names: Counter[str], principle_set: PrincipleSet) -> None:
    """Refuse answers that leave a principle out, name one twice, or add too many."""
    listed = {each.name for each in principle_set.principles}
    if missing := sorted(listed - names.keys()):
        raise InvalidAnswerError(f"the principle {missing[0]!r} is missing")
    if twice := sorted(name for name, number in names.items() if number > 1):
        raise InvalidAnswerError(f"the principle {twice[0]!r} stands there twice")
    if len(names) - len(listed) > principle_set.max_added:
        raise InvalidAnswerError(f"it adds {len(names) - len(listed)} principles, more than {principle_set.max_added}")


def _harmless(text: str) -> str:
    """The text without chat tokens, half characters and tags of scores and calls, which a judge would quote.

    An answer with the tag of a call is read as a call, by servers and where the judge is trained.
    """
    return without_chat_tokens(_ANY_TAG.sub("[", text.encode(errors="replace").decode()))


def _words(text: str) -> str:
    """The text as a judge sees it, with one space between its words."""
    return " ".join(_harmless(text).split())


def quotable(text: str) -> str:
    """The first words of a turn, as a judge may quote them."""
    return _words(text)[:60].strip()
