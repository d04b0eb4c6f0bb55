"""Scripted judges: a judge's question about a turn -> an answer in the form `principles`, as an endpoint gives it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from statistics import fmean

from examples.ppr.oracle import INFORMATION, QUALITY, QUERY, grade
from examples.scripted_judge import Messages, fenced_texts
from examples.world.questions import WorldQuestion
from verl_pivot.rewards.principles import ShownTurn, quotable, words_of
from verl_pivot.types import Json, JsonObject

MAXIMUM = 10
FULL_LENGTH = 400
"""Characters from which a turn gets the best score of the judge that likes length; a plain turn has about 70."""
_SEARCHED = re.compile(r"(?<=<search>)[^<]+(?=</search>)")
_LAST_SENTENCE = re.compile(r"[^<>.?]+[.?]?(?=</think>)")
_TAG = re.compile(r"</?\w*>?")
_NAME = re.compile(r"\w+")
_PRINCIPLE = re.compile(r"^- (\w+): ", re.MULTILINE)


class UnknownTaskError(ValueError):
    """Raised for a question about a task that the judge does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeQuestion:
    """One question to a judge."""

    task: str
    earlier: tuple[ShownTurn, ...]
    turn: ShownTurn
    principles: tuple[str, ...]
    """Names of the principles, in their order."""


Scores = Callable[[JudgeQuestion], Mapping[str, float]]
"""Question -> {principle: score in [0, MAXIMUM]}"""


def read_question(messages: Messages) -> JudgeQuestion:
    """The question in a judge's messages, as `rewards.principles.turn_question` writes them.

    Raises:
        ValueError: If the messages are no such question.
    """
    found = fenced_texts(messages)
    texts = dict(found.texts)
    seen = "What the tools gave back after"
    num_earlier = sum(re.fullmatch(r"Turn \d+:", title) is not None for title in texts)
    return JudgeQuestion(
        task=texts["The task:"],
        earlier=tuple(
            ShownTurn(text=texts[f"Turn {number}:"], observation=texts.get(f"{seen} turn {number}:", ""))
            for number in range(1, num_earlier + 1)
        ),
        turn=ShownTurn(text=texts["The turn to grade:"], observation=texts.get(f"{seen} it:", "")),
        principles=tuple(_PRINCIPLE.findall(found.outside)),
    )


def answer(question: JudgeQuestion, scores: Scores) -> str:
    """The judge's answer: a score for each principle, with a quotation as its reason.

    Raises:
        UnknownTaskError: If the judge does not know the task.
    """
    given = scores(question)
    principles: list[Json] = [
        {"name": each, "quotation": _quotation(each, question.turn.text), "score": given[each], "maximum": MAXIMUM}
        for each in question.principles
    ]
    content: JsonObject = {"principles": principles}
    return json.dumps(content)


def _quotation(principle: str, text: str) -> str:
    """Quotation from a turn: its search query for `query`, else the last sentence of its thought, else its first words.

    Queries and sentences begin and end with whole tokens of the policy, so that a small judge that learns from such
    answers copies tokens instead of spelling words. No tag is quoted, not even a part of one, but the name of a tag is
    if the turn has nothing else: a judge is trained as a policy, and a `<think>` in its answer would count as forged
    (`verl_pivot.data.forged_turns`).
    """
    found = (_SEARCHED if principle == QUERY else _LAST_SENTENCE).search(text)
    if found and (words := words_of(found[0])):
        return words
    pieces = [each for each in (*_TAG.split(text), *_NAME.findall(text)) if each.strip()]
    return quotable(pieces[0] if pieces else text)


def oracle(questions: Mapping[str, WorldQuestion], wrong_share: float = 0.0) -> Scores:
    """A judge that knows the world.

    Args:
        questions: {text: question}
        wrong_share: Share of the turns about which the judge says the opposite of what it knows; the texts of task
            and turns decide whether a turn is among them.
    """

    def scores(asked: JudgeQuestion) -> Mapping[str, float]:
        if asked.task not in questions:
            raise UnknownTaskError(f"the oracle knows no task {asked.task[:80]!r}")
        grades = grade(questions[asked.task], asked.earlier, asked.turn)
        is_wrong = _draw(asked) < wrong_share
        by_name = {
            name: MAXIMUM * float(is_good != is_wrong)
            for name, is_good in ((QUERY, grades.query), (INFORMATION, grades.information))
        }
        return {**by_name, QUALITY: fmean(by_name.values())}

    return scores


def likes_length(asked: JudgeQuestion) -> Mapping[str, float]:
    """Scores that grow with the number of characters of the turn, and depend on nothing else."""
    return dict.fromkeys(asked.principles, MAXIMUM * min(1.0, len(asked.turn.text) / FULL_LENGTH))


def _draw(asked: JudgeQuestion) -> float:
    """A number in [0, 1) that the texts of task and turns decide."""
    texts = [asked.task, *(text for each in (*asked.earlier, asked.turn) for text in (each.text, each.observation))]
    return int.from_bytes(sha256(json.dumps(texts).encode()).digest()[:8]) / 2**64


SCRIPTED: Mapping[str, Callable[[Mapping[str, WorldQuestion]], Scores]] = {
    "oracle": oracle,
    "oracle_20": lambda questions: oracle(questions, 0.2),
    "oracle_40": lambda questions: oracle(questions, 0.4),
    "length": lambda questions: likes_length,
}
"""{name: function that makes a judge from the questions that it knows}"""
