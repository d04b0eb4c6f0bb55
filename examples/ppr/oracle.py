"""Oracle of the world: a turn of a search agent -> whether its query and what it says that it read are right."""

from collections.abc import Sequence
from typing import NamedTuple

from examples.world.questions import Lookup, WorldQuestion
from examples.world.sentences import value_in
from verl_pivot.data.tagged_text import split_at_tags
from verl_pivot.rewards.principles import ShownTurn

QUERY, INFORMATION = "query", "information"
"""Names of the principles in principles.yaml."""
QUALITY = "quality"
"""Name of the one question in one_question.yaml: the mean of both."""


class TurnGrades(NamedTuple):
    """What the oracle finds in one turn."""

    query: bool
    """Whether it searches for the entity whose page tells the next fact on the way to the answer."""
    information: bool
    """Whether it says each fact on that way that the page before was the first to tell, and no such fact wrongly."""


def grade(question: WorldQuestion, earlier: Sequence[ShownTurn], turn: ShownTurn) -> TurnGrades:
    """Grades of a turn.

    Args:
        question: What the agent works on.
        earlier: The turns before, each with the page that its search found.
        turn: The turn.
    """
    before, last = ("\n".join(each.observation for each in turns) for turns in (earlier[:-1], earlier[-1:]))
    known = [each for each in question.lookups if each.is_answered_by(before)]
    fresh = [each for each in question.lookups if each not in known and each.is_answered_by(last)]
    missing = [each for each in question.lookups if each not in known and each not in fresh]
    queries = split_at_tags(turn.text, "<search>", "</search>").inside
    thought = " ".join(split_at_tags(turn.text, "<think>", "</think>").inside)
    return TurnGrades(
        query=bool(missing and queries) and missing[0].is_asked_by(queries[-1]),
        information=all(each.is_answered_by(thought) for each in fresh)
        and not any(_is_said_wrongly(each, thought) for each in question.lookups),
    )


def _is_said_wrongly(lookup: Lookup, thought: str) -> bool:
    return value_in(thought, lookup.entity, lookup.fact) not in (None, lookup.value)
