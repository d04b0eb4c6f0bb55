"""The careless agent's transcripts, as the agent loop with `+tool_format=search_r1` would show them to a policy."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from examples.ppr.agent import SearchAgent, SearchHabits
from examples.world.pages import Pages
from examples.world.questions import WorldQuestion
from verl_pivot.tools.search import SearchTool
from verl_pivot.types import Message, Role, Trajectory

MAX_TURNS = 5
"""Most turns of a trajectory: without a mistake, a question of three hops takes four."""
OBSERVATION = "\n\n<information>{text}</information>\n\n"
"""Text around a page, as in `configs/tool_format/search_r1.yaml`."""
OBSERVED = re.compile(r"(\n\n<information>.*?</information>\n\n)", re.DOTALL)
"""Pattern of a page in an assistant's message, which the policy did not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Transcript of the agent on one question."""

    log: Trajectory
    is_right: bool


def record_all(questions: Sequence[WorldQuestion], pages: Pages, habits: SearchHabits) -> list[Transcript]:
    """Transcripts of all questions; equal questions and habits give equal transcripts."""
    return [record(each, pages, Random(each.id), habits) for each in questions]


def record(question: WorldQuestion, pages: Pages, rng: Random, habits: SearchHabits) -> Transcript:
    """The transcript of one question, up to the answer or the last turn."""
    agent = SearchAgent(question=question, rng=rng, habits=habits)
    turn = agent.act()
    text = turn.text
    for _ in range(MAX_TURNS - 1):
        if turn.query is None:
            break
        page = pages.search(turn.query)
        agent.read(page)
        turn = agent.act()
        text += OBSERVATION.format(text=page) + turn.text
    messages = (Message(role=Role.USER, content=question.text), Message(role=Role.ASSISTANT, content=text))
    log = Trajectory(id=question.id, messages=messages, tools=(SearchTool.schema,))
    return Transcript(log=log, is_right=turn.query is None and turn.answer == question.answer)
