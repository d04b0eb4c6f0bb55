"""Graphs of questions: those that a program refuses, verdicts of judges, and unreadable judges, which pass nothing."""

from typing import Any

import pytest

from tests.support.arena_writer import answer, answering, draft_with_graph, make_graph
from tests.support.workshops import workshop
from verl_pivot.data.json_values import BadRowError
from verl_pivot.errors import ConfigError
from verl_pivot.synthesis.arena_tools import ArenaToolsOptions, ArenaToolsStep
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.graph_checks import GraphChecksOptions, graph_checks
from verl_pivot.synthesis.question_graph import (
    GRAPH,
    QuestionGraph,
    QuestionGraphOptions,
    QuestionGraphStep,
    graph_problem,
)
from verl_pivot.synthesis.recipes import read_recipe

NO = {"reason": "", "fulfilled": False}


async def graph_reason(given: object) -> str:
    """Reason for which the step refuses a graph; "" if it takes the graph."""
    step = QuestionGraphStep(QuestionGraphOptions(topics=("travel",), min_hops=3, max_hops=3))
    try:
        (draft,) = await step(Draft(id="0"), workshop(answering({"Write a request": given})))
    except BadRowError as error:
        return error.reason
    assert draft.values[GRAPH] == given
    return ""


def changed_question(number: int, **changes: Any) -> dict[str, Any]:
    graph = make_graph()
    graph["questions"][number - 1] |= changes
    return graph


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (make_graph(), ""),
        ("I would rather not.", "unreadable_answer"),
        (make_graph(request="Hello <|im_end|>"), "bad_request"),
        (make_graph(request="Hello \ud800"), "answer_of_other_form"),
        (changed_question(3, answer="<|im_end|>"), "bad_request"),
        (make_graph(questions=[]), "answer_of_other_form"),
        (make_graph(hops=3), "answer_of_other_form"),
        (changed_question(2, id=7), "bad_graph"),
        (changed_question(2, depends_on=[3]), "bad_graph"),
        (changed_question(2, depends_on=[2]), "bad_graph"),
        (changed_question(2, depends_on=[0]), "bad_graph"),
        (changed_question(2, depends_on=[1, 1]), "bad_graph"),
        (changed_question(3, answer=None), "no_answer"),
        (changed_question(3, answer=[]), "no_answer"),
        (changed_question(3, answer="\ud800"), "not_json"),
        (changed_question(3, depends_on=[1]), "other_number_of_hops"),
    ],
)
async def test_a_graph_is_taken_only_if_a_program_can_follow_it(given: object, reason: str) -> None:
    assert await graph_reason(given) == reason


def test_too_many_questions_are_refused() -> None:
    problem = graph_problem(QuestionGraph.model_validate(make_graph()), 3, 2)

    assert problem is not None
    assert problem.reason == "too_many_questions"


def test_all_questions_that_others_need_get_a_tool() -> None:
    graph = make_graph()
    for each in graph["questions"]:
        each["needs_tool"] = False

    assert [each.id for each in QuestionGraph.model_validate(graph).with_tools] == [1, 2]


def test_hops_that_no_graph_can_have_are_an_error_of_the_recipe() -> None:
    with pytest.raises(ConfigError, match="min_hops <= max_hops <= max_questions is needed, got 3, 9 and 8"):
        read_recipe("arenas", {"question_graph.max_hops": 9})


@pytest.mark.parametrize(
    ("answers", "score", "reason"),
    [
        ({}, 1.0, "accepted"),
        ({"every one of the known answers": NO}, 0.0, "wrong_dependency"),
        ({"asks for one thing alone": NO}, 0.0, "not_atomic"),
        ({"asked side by side": NO}, 0.0, "forced_serialization"),
        ({"answer everything that the request": NO}, 0.0, "incomplete_questions"),
        ({"asked side by side": "1"}, None, "judges_undecided"),
        ({"asked side by side": {"score": 1}}, None, "judges_undecided"),
        ({"asked side by side": ""}, None, "judges_undecided"),
        ({"true or false": NO}, None, "judges_undecided"),
    ],
)
async def test_each_check_needs_a_majority_and_an_unreadable_judge_has_no_vote(
    answers: dict[str, object], score: float | None, reason: str
) -> None:
    verdict = await graph_checks(GraphChecksOptions())(draft_with_graph(), workshop(answering(answers)))

    assert (verdict.score, verdict.reason) == (score, reason)


async def test_steps_without_a_graph_say_which_step_is_missing() -> None:
    for step in (graph_checks(GraphChecksOptions()), ArenaToolsStep(ArenaToolsOptions())):
        with pytest.raises(ConfigError, match="step step needs questions: put step question_graph before it"):
            await step(Draft(id="0"), workshop(answer))
