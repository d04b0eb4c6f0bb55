"""Oracle of the world: a turn of a search agent -> whether its query is right, and whether it states facts rightly."""

from collections.abc import Sequence
from typing import NamedTuple

from examples.world.questions import Lookup, WorldQuestion
from examples.world.sentences import value_in
from verl_pivot.data.tagged_text import split_at_tags
from verl_pivot.rewards.principles import ShownTurn

QUERY, INFORMATION = "query", "information"
"""Names of the principles in principles.yaml."""
QUALITY = "quality"
"""Name of the one question in one_question.yaml; its score is the mean of the scores of both principles."""


class TurnGrades(NamedTuple):
    """What the oracle finds in one turn."""

    query: bool
    """Whether the turn searches for the entity whose page tells the next fact on the way to the answer."""
    information: bool
    """Whether the turn states each fact of that way that the last page was the first to tell, and none wrongly."""


def grade(question: WorldQuestion, earlier: Sequence[ShownTurn], turn: ShownTurn) -> TurnGrades:
    """Grades of a turn.

    Args:
        question: The question that the agent works on.
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
