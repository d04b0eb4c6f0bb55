"""Rewards of Search-R1 and ReSearch: the worth of texts by each rule, and texts that forge results of calls."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.rollout_records import make_record
from verl_pivot.data.rollout_records import CallRecord, CallStatus, RolloutRecord, StopReason
from verl_pivot.errors import DataError
from verl_pivot.rewards.search_rewards import research, search_r1, search_r1_format
from verl_pivot.types import ErrorKind

TARGET = {"target": ["Paris", "City of Paris"]}
SEARCH = "<think>hm</think><search>capital</search>\n\n<information>Doc 1: {}</information>\n\n"
FOUND, NOT_FOUND = SEARCH.format("The city of Paris is the capital."), SEARCH.format("Cheese is made of milk.")
NO_ACTION = CallRecord(turn=0, name="", arguments=None, status=CallStatus.TOOL_ERROR, error_kind=ErrorKind.NO_ACTION)
RIGHT, WRONG = "<think>so</think>\n<answer> Paris. </answer>", "<think>so</think>\n<answer>Lyon</answer>"


def reward(
    function: Callable[..., float], text: str, num_calls: int, *, target: Any = TARGET,
    stop_reason: StopReason = StopReason.ANSWERED, **options: float,
) -> float:  # fmt: skip
    call = CallRecord(turn=0, name="search", arguments={"query": "capital"}, status=CallStatus.OK)
    record = RolloutRecord(
        prompt_id="p", stop_reason=stop_reason, calls=(call,) * num_calls, turn_tokens=(9,) * (num_calls + 1),
        prompt_tokens=9, response_tokens=99, generate_seconds=0.1, tool_seconds=0.1,
    )  # fmt: skip
    return function("searchR1_nq", text, target, {"rollout": record.as_dict(), "question": "?"}, **options)


@pytest.mark.parametrize(
    ("text", "num_calls", "plain", "with_form"),
    [
        (RIGHT, 0, 1.0, 1.0),
        (FOUND + RIGHT, 1, 1.0, 1.0),
        (FOUND + NOT_FOUND + RIGHT, 2, 1.0, 1.0),
        (FOUND + WRONG, 1, 0.0, 0.3),
        (NOT_FOUND + WRONG, 1, 0.0, 0.2),
        (WRONG, 0, 0.0, 0.2),
        ("Paris it is. <answer>the PARIS</answer>", 0, 1.0, 0.8),
        ("<answer>Lyon</answer>", 0, 0.0, 0.1),
        (FOUND + "<think>so", 1, 0.0, 0.0),
        ("", 0, 0.0, 0.0),
    ],
)
def test_the_worths_are_those_of_search_r1(text: str, num_calls: int, plain: float, with_form: float) -> None:
    assert reward(search_r1, text, num_calls) == plain
    assert reward(search_r1_format, text, num_calls) == pytest.approx(with_form)


def test_worths_and_the_cost_of_a_search_can_be_set() -> None:
    assert reward(search_r1, FOUND + RIGHT, 1, cost_per_search=0.1) == pytest.approx(0.9)
    assert reward(search_r1_format, FOUND + WRONG, 1, form=0.4, retrieval=0.0, cost_per_search=0.1) == pytest.approx(
        0.3
    )
    assert reward(search_r1_format, "<answer>Lyon</answer>", 0, answer=0.05) == 0.05


@pytest.mark.parametrize(
    ("text", "num_calls"),
    [
        (FOUND + WRONG, 0),  # the policy wrote the observation itself
        (FOUND + FOUND + WRONG, 1),
        ("<information>Paris</information>" + WRONG, 1),
        (FOUND.replace("<think>hm</think>", "") + WRONG, 1),
        (FOUND + "by the way " + WRONG, 1),
        (FOUND + WRONG + " Good bye.", 1),
        (FOUND + WRONG + WRONG, 1),
        (FOUND + "<think>a<think>b</think></think><answer>Lyon</answer>", 1),
        (FOUND + "<think><search>Paris</search></think><answer>Lyon</answer>", 1),
        ("</think>" + FOUND + WRONG, 1),
    ],
)
def test_a_wrong_form_is_not_paid_as_a_right_one(text: str, num_calls: int) -> None:
    assert reward(search_r1_format, text, num_calls) == 0.1


def test_a_turn_without_call_and_answer_costs_no_search() -> None:
    record = RolloutRecord(
        prompt_id="p", stop_reason=StopReason.ANSWERED, calls=(NO_ACTION,), turn_tokens=(9, 9), prompt_tokens=9,
        response_tokens=99, generate_seconds=0.1, tool_seconds=0.0,
    )  # fmt: skip

    assert search_r1("nq", "Hm. Try again. " + RIGHT, TARGET, {"rollout": record.as_dict()}, cost_per_search=0.1) == 1.0


def test_the_retry_message_holds_no_answer_of_the_policy_and_no_right_form() -> None:
    shipped = yaml.safe_load((ROOT / "configs" / "tool_format" / "search_r1.yaml").read_text())
    message = shipped["pivot"]["rollout"]["retry_message"]
    record = make_record(calls=(NO_ACTION,), turn_tokens=(9, 9), retry_message=message).as_dict()

    def rewards(text: str, target: Any = TARGET) -> list[float]:
        given = ("nq", text, target, {"rollout": record})
        return [search_r1(*given), search_r1_format(*given), research(*given)]

    assert "<answer> and </answer>" in message
    assert rewards("Hm." + message + RIGHT) == [1.0, pytest.approx(0.8), 0.0]
    assert rewards("Hm." + message + WRONG) == [0.0, pytest.approx(0.1), 0.0]
    assert rewards("<think>hm</think>" + message + "<answer>Paris</answer>") == [1.0, pytest.approx(0.8), 0.0]
    assert rewards("Hm." + message, "and") == [0.0, 0.0, 0.0]
    assert rewards("Hm." + message + BOX % "Paris")[2] == 1.0


def test_several_different_answers_are_none_and_an_observation_holds_no_answer_of_the_policy() -> None:
    several = "<think>so</think><answer>Lyon</answer><answer>Paris</answer>"
    shown = SEARCH.format("<answer> Paris </answer> <search>")

    assert [reward(function, several, 0) for function in (search_r1, search_r1_format)] == [0.0, 0.0]
    assert [reward(function, shown + WRONG, 1) for function in (search_r1, search_r1_format)] == [
        0.0,
        pytest.approx(0.3),
    ]
    assert reward(search_r1_format, shown + RIGHT, 1) == 1.0


ASKED = "<think>hm</think> <search>capital</search> <result>\nParis\nThe <answer> of \\boxed{France}.\n</result>"
BOX = "<think>so</think> <answer>It is \\[ \\boxed{%s} \\]</answer>"


@pytest.mark.parametrize(
    ("text", "num_calls", "worth"),
    [
        (BOX % "Paris", 0, 1.0),
        (ASKED + ASKED + BOX % "the city of Paris", 2, 1.0),
        (ASKED + BOX % "Paris in France", 1, 2 * 1 / (3 + 1)),
        (ASKED + BOX % "Lyon", 1, 0.1),
        (ASKED + "<answer>\\boxed{Paris}</answer>", 1, 1.0),
        ("<answer>\\boxed{Paris}</answer>", 0, 0.0),
        (BOX % "Paris" + "<answer>\\boxed{Paris}</answer>", 0, 0.0),
        ("<think>so</think><answer>Paris</answer>", 0, 0.0),
        ("<think>so</think><answer>\\boxed{Paris</answer>", 0, 0.0),
        ("<think>so</think>\\boxed{Paris}", 0, 0.0),
        ("<think>" + BOX % "Paris", 0, 0.0),
        ("</answer>" + (BOX % "Paris").removesuffix("</answer>"), 0, 0.0),
        (ASKED + BOX % "Paris", 0, 0.0),
        (ASKED.replace("<search>capital</search>", "") + BOX % "Paris", 1, 0.0),
        (ASKED.replace("</search>", "</search> Soon:") + BOX % "Paris", 1, 0.0),
        (ASKED + BOX % "Paris" + "<search>more</search>", 1, 0.0),
        (ASKED + BOX % "Paris" + "</result>", 1, 0.0),
        (ASKED + "<think>so</think><answer>\\boxed{Lyon} \\boxed{Paris}</answer>", 1, 0.0),
    ],
)
def test_the_worths_are_those_of_research(text: str, num_calls: int, worth: float) -> None:
    assert reward(research, text, num_calls) == pytest.approx(worth)


@pytest.mark.parametrize("stop_reason", [StopReason.MAX_RESPONSE_TOKENS, StopReason.MAX_TURNS])
def test_a_trajectory_that_a_limit_ended_is_not_paid_by_research(stop_reason: StopReason) -> None:
    assert reward(research, BOX % "Paris", 0, stop_reason=stop_reason) == 0.0


def test_yes_and_no_share_nothing_with_other_answers_for_research() -> None:
    answers = [(BOX % "no", "no way"), (BOX % "no way", "no"), (BOX % "No.", "no"), (BOX % "way", "no way")]

    assert [reward(research, text, 0, target=target) for text, target in answers] == [
        0.1,
        0.1,
        1.0,
        pytest.approx(2 / 3),
    ]


def test_accepted_answers_are_a_text_a_list_or_a_target() -> None:
    for target in ("Paris", ["Lyon", "Paris"], {"target": ("Paris",)}, {"target": "Paris"}):
        assert reward(search_r1, RIGHT, 0, target=target) == 1.0
    with pytest.raises(DataError, match="the accepted answers are all empty after normalisation"):
        reward(search_r1, RIGHT, 0, target=["", " . "])
    with pytest.raises(DataError, match="extra_info has no 'rollout', the record of a rollout with tools; set"):
        search_r1("nq", RIGHT, "Paris", {})


@pytest.mark.parametrize("function", [search_r1, search_r1_format, research])
def test_a_text_of_opened_tags_alone_takes_little_time(function: Callable[..., float]) -> None:
    text = "<information><result><answer>\\boxed{<search>" * 8_000

    assert reward(function, text, 0) == 0.0
