"""data.faults: an error in a row or in the user's code is named with its row, and equal ones are counted."""

import pytest

from verl_pivot.data.faults import fault_of, fault_verdict, row_name, with_row_name
from verl_pivot.errors import DataError, EngineError, ToolBugError, UserCodeError
from verl_pivot.types import Verdict


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"trajectory_id": "shop-1", "turn_index": 2, "extra_info": {"index": 5}}, "turn shop-1:2"),
        ({"extra_info": {"index": 0}, "raw_prompt": [{"content": "Hello"}]}, "row with extra_info.index 0"),
        ({"raw_prompt": [{"content": "Hello"}]}, "row whose prompt ends with 'Hello'"),
        ({}, "a row"),
    ],
)
def test_a_row_is_named_by_what_a_person_finds_it_by(row: dict[str, object], name: str) -> None:
    assert row_name(row) == name


@pytest.mark.parametrize(
    ("error", "reason", "detail"),
    [
        (UserCodeError("environment Shop.score raised KeyError: 'x'"), "user_code_failed", "environment Shop.score"),
        (ToolBugError("tool add raised TypeError"), "user_code_failed", "tool add raised"),
        (DataError("a prompt of 9 tokens"), "broken_row", "a prompt of 9"),
        (KeyError("x"), "rollout_failed", "KeyError: 'x' (place unknown)"),
        (EngineError("the engine died"), "system_failure", "the engine died"),
        (TimeoutError("slow"), "system_failure", "TimeoutError: slow"),
    ],
)
def test_the_reason_tells_whose_fault_it_is(error: Exception, reason: str, detail: str) -> None:
    verdict = fault_verdict(error)

    assert verdict.score is None
    assert verdict.reason == reason
    assert verdict.detail.startswith(detail)


def test_only_a_fault_is_named_with_its_row_and_only_once() -> None:
    row = {"trajectory_id": "shop-1", "turn_index": 2}
    fault = Verdict.undecided("broken_row", "no metadata")
    named = with_row_name(fault, row)

    assert named.detail == "turn shop-1:2: no metadata"
    assert with_row_name(named, row) == named
    assert with_row_name(Verdict.undecided("tool_failure", "down"), row).detail == "down"


def test_the_most_frequent_cause_is_told_with_its_count() -> None:
    fault = {"reason": "user_code_failed", "undecided": 1.0}
    rewards = [
        {"reason": "accepted", "detail": ""},
        {**fault, "detail": "turn a:0: once"},
        {**fault, "detail": "turn b:0: twice"},
        {**fault, "detail": "turn b:0: twice"},
    ]

    assert fault_of(rewards) == "turn b:0: twice (3 of 4 rollouts so far have a fault)"
    assert fault_of(rewards[:1]) is None
    assert fault_of([{"reason": "tool_failure", "detail": "the sandbox is down"}]) is None
