"""An agent that searches as often for known as for unknown facts: questions -> transcripts in Search-R1's format."""

from collections.abc import Sequence
from random import Random

from examples.ppr.transcripts import OBSERVATION
from examples.world.names import misspelt
from examples.world.pages import Pages
from examples.world.questions import WorldQuestion
from examples.world.sentences import sentence_in
from verl_pivot.tools.search import SearchTool
from verl_pivot.types import Message, Role, Trajectory

MAX_TURNS = 3
"""Most turns of a trajectory: two searches and the answer, as in the published scripts."""
SEARCH_SHARE = 0.5
"""Share of the transcripts with a search, whether or not the answer is known."""
_MISSPELLS = 0.1
"""Chance that the first search misspells the name; a second one repairs it if the page found does not tell the fact."""


def record_all(questions: Sequence[WorldQuestion], pages: Pages, seed: int, *, knows: bool) -> list[Trajectory]:
    """One transcript of each question.

    Args:
        questions: Questions of one fact each.
        pages: Pages that searches find.
        seed: Seed of the choice whether to search, of misspellings and of wrong answers.
        knows: Whether an answer without a search is right; otherwise it is the answer to a random question.
    """
    rng = Random(f"search {seed}")
    others = [each.answer for each in questions]
    return [_record(each, pages, rng, each.answer if knows else rng.choice(others)) for each in questions]


def _record(question: WorldQuestion, pages: Pages, rng: Random, guess: str) -> Trajectory:
    return (
        _transcript(question, _searched(question, pages, rng))
        if rng.random() < SEARCH_SHARE
        else answered(question, guess)
    )


def answered(question: WorldQuestion, answer: str) -> Trajectory:
    """A transcript of an answer without a search."""
    return _transcript(question, f"<think>I know this.</think>\n<answer>{answer}</answer>")


def _transcript(question: WorldQuestion, text: str) -> Trajectory:
    messages = (Message(role=Role.USER, content=question.text), Message(role=Role.ASSISTANT, content=text))
    return Trajectory(id=question.id, messages=messages, tools=(SearchTool.schema,))


def _searched(question: WorldQuestion, pages: Pages, rng: Random) -> str:
    (lookup,) = question.lookups
    names = [lookup.entity]
    if rng.random() < _MISSPELLS:
        names.insert(0, misspelt(lookup.entity, rng))
    text, thought = "", "I look it up."
    for name in names:
        page = pages.search(name)
        text += f"<think>{thought}</think>\n<search>{name}</search>" + OBSERVATION.format(text=page)
        told = sentence_in(page, lookup.entity, lookup.fact)
        if told is not None:
            return f"{text}<think>{told}</think>\n<answer>{question.answer}</answer>"
        thought = "I look once more."
    raise AssertionError(f"no page tells {lookup}")
