"""Tests of `my_verifier`: what it accepts, and what it refuses."""

import asyncio

import verl_pivot.templates.my_verifier  # noqa: F401  registers the verifier
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier

USER = Message(role=Role.USER, content="Please pay order 17 back, it came late.")


def refund(**arguments: int | str) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=(ToolCall(name="refund", arguments={**arguments}),))


def verdict(action: Message, expert: Message, options: JsonObject | None = None) -> Verdict:
    turn = Turn(trajectory_id="shop-17", index=0, state=(USER,), expert=expert)
    return asyncio.run(get_verifier("my_verifier", options)(action, turn))


def test_the_experts_own_action_is_accepted() -> None:
    expert = refund(order_id=17, note="came late")

    assert verdict(expert, expert) == Verdict.accept()


def test_another_order_is_refused() -> None:
    given = verdict(refund(order_id=18), refund(order_id=17))

    assert (given.score, given.reason) == (0.0, "other_arguments")


def test_a_message_in_place_of_the_call_is_refused() -> None:
    given = verdict(Message(role=Role.ASSISTANT, content="Done!"), refund(order_id=17))

    assert (given.score, given.reason) == (0.0, "other_tools")


def test_an_argument_that_the_options_ignore_may_differ() -> None:
    action, expert = refund(order_id=17, note="late"), refund(order_id=17, note="came late")

    assert verdict(action, expert).score == 0.0
    assert verdict(action, expert, {"ignored": ["note"]}).score == 1.0
