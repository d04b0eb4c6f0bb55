"""Check `graph_checks`: judges check the dependencies, atomicity, parallelism and completeness of a question graph.

ASTRA (arXiv:2601.21558, section 3) keeps a graph whose mean score reaches a threshold. In its released code, an answer
that cannot be read or a request that fails scores 1. Here neither is a vote, and each check needs a majority.
"""

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import Field

from verl_pivot.data.json_values import encode_json
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.judging import THREE_JUDGES, JudgedText, fulfilled_votes, majority
from verl_pivot.synthesis.question_graph import QuestionGraph, graph_of
from verl_pivot.synthesis.steps import CheckStep, check_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.types import Json, Verdict
from verl_pivot.validation import Options

_TASK = "You judge how a request was taken apart into questions."
_DEPENDENCY = (
    "The question needs every one of the known answers, and what it refers to beside them it says itself. It is not "
    "fulfilled if a known answer does not matter for it, or if it refers to something that neither it nor they say."
)
_ATOMICITY = (
    "Each question asks for one thing alone, which one call of one tool can tell, and no two ask for the same. A last "
    "question that sums up the others and needs no tool may ask for more."
)
_SERIALIZATION = (
    "No question depends on another whose answer it does not need, so that all that could be asked side by side is."
)
_COMPLETENESS = (
    "The answers of all questions together answer everything that the request asks for, and the answer to the request "
    "follows from them."
)


class GraphChecksOptions(Options):
    roles: tuple[str, ...] = Field(default=THREE_JUDGES, min_length=1)
    """Roles of the judges; a role that is listed several times is asked with different seeds."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""


class GraphQuestion(NamedTuple):
    """One question to the judges about a graph."""

    reason: str
    """Reason of the rejection if the judges say no."""
    criterion: str
    shown: str
    """Text that the judges read, as JSON."""


@check_step("graph_checks", options=GraphChecksOptions)
def graph_checks(options: GraphChecksOptions) -> CheckStep:
    """Passes a graph for which the majority of the judges, asked in both orders, says yes to each check."""

    async def check(draft: Draft, workshop: Workshop) -> Verdict:
        for position, asked in enumerate(graph_questions(graph_of(draft, workshop))):
            votes = await fulfilled_votes(
                workshop,
                JudgedText(_TASK, "What you judge:", asked.shown, asked.criterion),
                roles=options.roles,
                max_tokens=options.max_tokens,
                first_k=2 * position * len(options.roles),
            )
            decided = majority(votes)
            if decided is None:
                return Verdict.undecided("judges_undecided", f"{asked.reason}, votes: {votes}; {asked.shown}")
            if not decided:
                return Verdict.refuse(asked.reason, f"votes: {votes}; {asked.shown}")
        return Verdict.accept()

    return check


def graph_questions(graph: QuestionGraph) -> Iterator[GraphQuestion]:
    """The questions to the judges: about each question that depends on others, and then about the whole graph."""
    for each in graph.questions:
        if each.depends_on:
            known: list[Json] = [
                {"question": other.question, "answer": other.answer} for other in graph.known_before(each)
            ]
            shown = encode_json({"question": each.question, "known": known})
            yield GraphQuestion("wrong_dependency", _DEPENDENCY, shown)
    whole = encode_json(graph.model_dump(mode="json"))
    yield GraphQuestion("not_atomic", _ATOMICITY, whole)
    yield GraphQuestion("forced_serialization", _SERIALIZATION, whole)
    yield GraphQuestion("incomplete_questions", _COMPLETENESS, whole)
