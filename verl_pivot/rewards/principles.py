"""A turn of a trajectory -> the question that a judge is asked about it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.types import JsonObject
from verl_pivot.validation import Options
from verl_pivot.verifiers.judge_prompts import Fence

Form = Literal["released", "principles"]
"""
released: an analysis, and a line with `<final_score>SCORE,MAX_SCORE</final_score>`, as published PPRMs answer.
principles: JSON with a score, a maximum and a quotation for each principle.
"""
FORMS: tuple[Form, ...] = ("released", "principles")
Fit = Callable[[Sequence[str], Sequence[int]], Sequence[str]]
"""Function (texts, positions of the texts in the order in which they may be cut) -> texts that fit a limit together."""
_ANY_TAG = re.compile(r"<(?=\s*+(?:/\s*+)?(?:final_score|tool_call))", re.IGNORECASE)
OBSERVATION = "What the tools gave back"
"""Beginning of the titles of observations."""
_TASK = (
    "You grade one turn of an assistant that works on a task in several turns, with the help of tools. You see the "
    "task, the turns before, and the turn to grade with what the tools gave back after it. Judge this turn alone: "
    "neither the turns before it nor what comes later. Its length says nothing about it."
)


class Principle(Options):
    """One thing that a turn is judged by."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    text: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """One turn as a judge sees it."""

    text: str
    """Text of the policy."""
    observation: str = ""
    """Text that the tools returned after the turn."""


def size_of_turns(turns: Iterable[ShownTurn]) -> int:
    """Characters of the texts of turns, by which `run_off_loop` decides."""
    return sum(len(turn.text) + len(turn.observation) for turn in turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipleSet:
    """Principles that a judge goes by, and the form of its answer."""

    form: Form
    principles: tuple[Principle, ...]
    max_added: int = 0
    """Most principles of its own that the judge may add; only in the form `principles`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FencedQuestion:
    """Question about texts that stand in fences."""

    messages: list[JsonObject]
    name: str
    """Digest of the messages without the random words of their fences: equal for equal questions."""
    fence_word: str

    @property
    def recorded_messages(self) -> list[JsonObject]:
        """The messages with a fence word derived from `name`: the texts were written before and cannot hold it."""
        return [
            {**message, "content": str(message["content"]).replace(self.fence_word, self.name[:16])}
            for message in self.messages
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnQuestion(FencedQuestion):
    """Question about one turn."""

    turn: ShownTurn


def task_text(prompt: Sequence[Mapping[str, Any]]) -> str:
    """Task that the policy was given: its prompt as text."""
    if len(prompt) == 1:
        return str(prompt[0].get("content") or "")
    return "\n\n".join(f"{message.get('role')}: {message.get('content') or ''}" for message in prompt)


def turn_question(
    task: str, earlier: Sequence[ShownTurn], turn: ShownTurn, principle_set: PrincipleSet, fit: Fit
) -> TurnQuestion:
    """The question about a turn.

    Args:
        task: Task that the policy was given.
        earlier: The turns before.
        turn: The turn to judge.
        principle_set: Principles that it is judged by, and the form of the answer.
        fit: Cuts texts that are too long: old turns first, then the task, and this turn last.
    """
    texts = [task, *(text for each in (*earlier, turn) for text in (each.text, each.observation))]
    old = [position for number in range(len(earlier)) for position in (2 * number + 2, 2 * number + 1)]
    shown = fit([harmless(text) for text in texts], [*old, 0, len(texts) - 1, len(texts) - 2])
    answer, instructions = _instructions(principle_set)
    asked = fenced_question(_TASK, answer, list(zip(_titles(len(earlier)), shown, strict=True)), instructions)
    return TurnQuestion(messages=asked.messages, name=asked.name, fence_word=asked.fence_word, turn=turn)


def fenced_question(task: str, answer: str, texts: Sequence[tuple[str, str]], instructions: str) -> FencedQuestion:
    """A question about texts in fences.

    Args:
        task: Text that tells the judge what to do.
        answer: Sentence that tells the judge what to answer with.
        texts: (title, harmless text) of each text; an empty observation is left out.
        instructions: Text after the fenced texts.
    """
    fence = Fence()
    parts = [fence.around(title, text) for title, text in texts if text or not title.startswith(OBSERVATION)]
    user = "\n\n".join((*parts, instructions))
    messages: list[JsonObject] = [{**fence.system(task, answer)}, {"role": "user", "content": user}]
    return FencedQuestion(messages=messages, name=fence.name_of(messages), fence_word=fence.word)


def _titles(num_earlier: int) -> list[str]:
    """Titles of the task, and of each turn and the observation after it."""
    before = [
        title
        for number in range(1, num_earlier + 1)
        for title in (f"Turn {number}:", f"{OBSERVATION} after turn {number}:")
    ]
    return ["The task:", *before, "The turn to grade:", f"{OBSERVATION} after it:"]


def _instructions(principle_set: PrincipleSet) -> tuple[str, str]:
    """Sentence of the system message about the answer, and the principles with the form of the answer."""
    listed = listed_principles(principle_set)
    if principle_set.form == "released":
        return "Answer only with the two lines that are asked for.", (
            f"Grade the turn by these principles:\n{listed}\n\nWrite two lines. The first is your analysis, principle "
            "by principle. The second holds the sum of your scores and the sum of their maxima as whole numbers:\n"
            "Analysis: ...\nScores: <final_score>SCORE,MAX_SCORE</final_score>"
        )
    return "Answer only with the JSON object that is asked for.", (
        f"Grade the turn by these principles:\n{listed}\n\n{how_to_grade(principle_set, 'the turn to grade')}\nAnswer "
        f"{FORM_OF_ANSWER}."
    )


FORM_OF_ANSWER = '{"principles": [{"name": "...", "quotation": "...", "score": ..., "maximum": ...}, ...]}'
"""Pattern of an answer in the form `principles`, as it is shown to a judge."""


def listed_principles(principle_set: PrincipleSet) -> str:
    return "\n".join(f"- {each.name}: {each.text}" for each in principle_set.principles)


def how_to_grade(principle_set: PrincipleSet, what: str) -> str:
    """Instruction how to answer about each principle in the form `principles`.

    Args:
        principle_set: Principles that the judge goes by.
        what: Words for what is graded, such as "the turn to grade".
    """
    added = principle_set.max_added
    own = f" You may add up to {added} of your own that matter for this turn." if added else ""
    return (
        f"Each of them stands in your answer once, under its name.{own} For each, quote the words of {what} by which "
        "you judge it, letter by letter and from no other text; then give a score from 0 to a maximum of your choice, "
        "at most 10."
    )


def harmless(text: str) -> str:
    """The text without chat tokens, lone surrogates, and tags of scores and calls, all of which a judge might quote.

    An answer that holds the tag of a call is read as a call, both by servers and in the training of a judge.
    """
    return without_chat_tokens(_ANY_TAG.sub("[", text.encode(errors="replace").decode()))


def words_of(text: str) -> str:
    """The text as a judge sees it, with one space between its words."""
    return " ".join(harmless(text).split())


def quotable(text: str) -> str:
    """The first words of a turn, as a judge may quote them."""
    return words_of(text)[:60].strip()
