"""verifiers.tool_call: expert accepted, harmless rewrite accepted, near miss refused with its reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from verl_pivot.data.json_values import equal
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall
from verl_pivot.verifiers.registry import get_verifier


def call(name: str, /, **arguments: Json) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def say(text: str = "", *calls: ToolCall) -> Message:
    return Message(role=Role.ASSISTANT, content=text, tool_calls=calls)


tool_call = get_verifier("tool_call")

REFUND = call("refund", order_id=17, amount=9.5)
FIND = call("find", name="Ann")


@pytest.mark.parametrize(
    ("expert", "action"),
    [
        (say("", REFUND), say("", REFUND)),
        (say("", REFUND), say("Refunding.", call("refund", amount=9.5, order_id=17.0))),
        (say("", REFUND, FIND), say("", FIND, REFUND)),
        (say("Done."), say("All done, have a nice day.")),
    ],
)
async def test_the_same_action_is_accepted(expert: Message, action: Message) -> None:
    verdict = await tool_call(action, make_turn(expert=expert))

    assert (verdict.score, verdict.reason) == (1.0, "accepted")


@pytest.mark.parametrize(
    ("expert", "action", "reason", "detail"),
    [
        (say("", REFUND), say("", call("refund", order_id=17)), "missing_argument", "refund.amount"),
        (say("", FIND), say("", call("find", name="Ann", limit=1)), "extra_argument", "find.limit"),
        (say("", FIND), say("", call("find", name="Anne")), "wrong_value", "find.name: 'Anne', the expert gives 'Ann'"),
        (say("", REFUND), say("", call("refund", order_id="17", amount=9.5)), "wrong_type",
         "refund.order_id: '17', the expert gives 17"),
        (say("", FIND), say("", call("lookup", name="Ann")), "wrong_tool", "lookup, the expert calls find"),
        (say("", FIND), say("", FIND, FIND), "wrong_number_of_calls", "2 calls, the expert makes 1"),
        (say("", FIND), say("Who?"), "message_instead_of_call", "the expert makes 1 calls"),
        (say("Done."), say("Done.", FIND), "call_instead_of_message", "called find"),
        (say("Done."), say(""), "empty_message", "neither a call nor text"),
    ],
)  # fmt: skip
async def test_a_near_miss_is_refused_with_its_reason(
    expert: Message, action: Message, reason: str, detail: str
) -> None:
    verdict = await tool_call(action, make_turn(expert=expert))

    assert (verdict.score, verdict.reason, verdict.detail) == (0.0, reason, detail)


async def test_one_call_does_not_match_two_equal_ones() -> None:
    verdict = await tool_call(say("", FIND, REFUND), make_turn(expert=say("", FIND, FIND)))

    assert (verdict.score, verdict.reason) == (0.0, "wrong_tool")


@pytest.mark.parametrize(("value", "other"), [(True, 1), (0, False), ("1", 1), (None, 0), (None, ""), ([], {})])
def test_values_of_different_json_types_differ(value: Json, other: Json) -> None:
    assert not equal(value, other)
    assert not equal([value], [other])
    assert not equal({"key": value}, {"key": other})


json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(json_values, json_values)
def test_equality_is_reflexive_and_symmetric(value: Json, other: Json) -> None:
    assert equal(value, value)
    assert equal(value, other) == equal(other, value)


@given(st.dictionaries(st.text(), json_values, min_size=1))
async def test_the_expert_passes_and_a_dropped_argument_never_does(arguments: JsonObject) -> None:
    turn = make_turn(expert=say("", ToolCall(name="tool", arguments=arguments)))
    fewer = dict(list(arguments.items())[1:])

    assert (await tool_call(turn.expert, turn)).score == 1.0
    assert (await tool_call(say("", ToolCall(name="tool", arguments=fewer)), turn)).reason == "missing_argument"
