"""Published rules for calls: cases computed by hand from their formulas, on both sides of every threshold."""

import pytest

from tests.support.factories import make_turn
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.tool_call_toolrl import reward, share


def call(name: str, **arguments: Json) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def act(*calls: ToolCall, text: str = "") -> Message:
    return Message(role=Role.ASSISTANT, content=text, tool_calls=calls)


def turn_of(*calls: ToolCall, text: str = "") -> Turn:
    return make_turn(expert=act(*calls, text=text), tools=())


async def accepts(actual: Json, expert: Json, threshold: float = 0.1) -> bool:
    """Whether NeMo Gym's rule accepts one argument in place of the expert's."""
    verifier = get_verifier("tool_call", {"mode": "nemo_gym", "threshold": threshold})
    return (await verifier(act(call("f", x=actual)), turn_of(call("f", x=expert)))).score == 1.0


# (actual, expert, number of shared words / number of words of both texts together)
WORDS: list[tuple[str, str, float]] = [
    ("a b", "a b", 2 / 4),
    ("b a", "a b", 2 / 4),
    ("A B", "a b", 2 / 4),
    ("  a   b ", "a b", 2 / 4),
    ("a\tb\n", "a b", 2 / 4),
    ("a c", "a b", 1 / 4),
    ("c d", "a b", 0 / 4),
    ("a b c", "a b", 2 / 5),
    ("a b c d", "a b", 2 / 6),
    ("a a", "a b", 1 / 4),
    ("a a b b", "a b", 2 / 6),
    ("a a", "a a a", 2 / 5),
    ("a b c d e f g h", "a z", 1 / 10),
    ("a b c d e f g h i", "a z", 1 / 11),
    ("a b c d e f g", "a z", 1 / 9),
    ("a b c d", "a b c d", 4 / 8),
    ("a b c x", "a b c d", 3 / 8),
    ("a b x y", "a b c d", 2 / 8),
    ("a x y z", "a b c d", 1 / 8),
    ("w x y z", "a b c d", 0 / 8),
    ("a, b", "a b", 1 / 4),
    ("a b.", "a b", 1 / 4),
    ("user needs help", "user needs a refund", 2 / 7),
    ("transfer to an agent", "transfer the user to a human agent", 3 / 11),
    ("one two three", "three two one", 3 / 6),
]


@pytest.mark.parametrize(("actual", "expert", "share_of_words"), WORDS)
@pytest.mark.parametrize("threshold", [0.1, 0.3])
async def test_nemo_gym_texts_pass_from_the_threshold_on(
    actual: str, expert: str, share_of_words: float, threshold: float
) -> None:
    assert await accepts(actual, expert, threshold) == (share_of_words >= threshold)
    assert await accepts(expert, actual, threshold) == (share_of_words >= threshold)


@pytest.mark.parametrize(("actual", "expert", "share_of_words"), WORDS)
async def test_nemo_gym_accepts_texts_up_to_exactly_their_share_of_words(
    actual: str, expert: str, share_of_words: float
) -> None:
    assert await accepts(actual, expert, share_of_words)
    assert not await accepts(actual, expert, min(1.0, share_of_words + 1e-9))


VALUES: list[tuple[Json, Json, bool]] = [
    ("a", "a", True), ("a", "A", False), ("a ", "a", False), ("", "", True), ("", "a", False), ("a", "a b", False),
    ("a b", "a", False), ("", "a b", False), (" ", " ", True), (" ", "", False),
    (1, 1, True), (1, 2, False), (1, 1.0, False), (1.0, 1, False), (1.0, 1.0, True),
    (1.0000009, 1.0, True), (1.0000011, 1.0, False), (0.9999991, 1.0, True), (0.9999989, 1.0, False),
    (float("nan"), 1.0, False), (1.0, float("nan"), False), (float("inf"), 1.0, False),
    (True, 1, True), (1, True, False), (False, 0, True), (True, True, True), (True, False, False),
    (None, None, True), (None, 0, False), (0, None, False), ("1", 1, False), (1, "1", False),
    ([], [], True), ([1], [], False), ([], [1], False), ([1, 2], [1, 2], True), ([2, 1], [1, 2], False),
    ([1, 2, 3], [1, 2], False), (["a b"], ["b a"], True), ({}, {}, True), ({"k": 1}, {}, False), ({}, {"k": 1}, False),
    ({"k": 1}, {"k": 1}, True), ({"k": 2}, {"k": 1}, False), ({"k": {"l": "a b"}}, {"k": {"l": "a c"}}, True),
    ({"k": {"l": "x y"}}, {"k": {"l": "a c"}}, False), ([{"k": 1}], [{"k": 1}], True), ({"k": 1}, [], False),
]  # fmt: skip


@pytest.mark.parametrize(("actual", "expert", "is_accepted"), VALUES)
async def test_nemo_gym_values(actual: Json, expert: Json, is_accepted: bool) -> None:
    assert await accepts(actual, expert) == is_accepted


NEMO_ACTIONS: list[tuple[Message, Turn, str]] = [
    (act(text="hi"), turn_of(text="bye"), "accepted"),
    (act(), turn_of(text="bye"), "accepted"),
    (act(call("f")), turn_of(text="bye"), "call_instead_of_message"),
    (act(call("f"), text="hi"), turn_of(text="bye"), "call_instead_of_message"),
    (act(text="hi"), turn_of(call("f")), "message_instead_of_call"),
    (act(call("f"), text="hi"), turn_of(call("f")), "accepted"),
    (act(call("g")), turn_of(call("f")), "wrong_tool"),
    (act(call("f"), call("f")), turn_of(call("f")), "accepted"),
    (act(call("f"), call("h")), turn_of(call("f")), "accepted"),
    (act(call("f"), call("h")), turn_of(call("g")), "wrong_number_of_calls"),
    (act(call("f")), turn_of(call("f"), call("g")), "wrong_number_of_calls"),
    (act(call("g"), call("f")), turn_of(call("f"), call("g")), "accepted"),
    (act(call("f", x=2), call("f", x=1)), turn_of(call("f", x=1), call("f", x=2)), "accepted"),
    (act(call("f", x=1), call("f", x=1)), turn_of(call("f", x=1), call("f", x=2)), "wrong_value"),
    (act(call("f", x=1, y=2)), turn_of(call("f", x=1)), "extra_argument"),
    (act(call("f")), turn_of(call("f", x=1)), "missing_argument"),
]


@pytest.mark.parametrize(("action", "turn", "reason"), NEMO_ACTIONS)
async def test_nemo_gym_actions(action: Message, turn: Turn, reason: str) -> None:
    assert (await get_verifier("tool_call", {"mode": "nemo_gym"})(action, turn)).reason == reason


# (calls matched, calls of the policy, calls of the expert, switches, score)
SWITCHES: list[tuple[int, int, int, JsonObject, float]] = [
    (1, 2, 1, {}, 1.0),
    (1, 1, 2, {}, 0.0),
    (1, 2, 2, {}, 0.0),
    (1, 2, 1, {"parallel_tool_call_rewarding": True}, 0.0),
    (1, 2, 1, {"parallel_tool_call_rewarding": True, "allow_superset": True}, 1.0),
    (1, 1, 2, {"parallel_tool_call_rewarding": True, "allow_superset": True}, 0.0),
    (1, 1, 2, {"parallel_tool_call_rewarding": True, "allow_subset": True}, 1.0),
    (1, 2, 3, {"parallel_tool_call_rewarding": True, "allow_subset": True}, 0.0),
    (2, 3, 4, {"parallel_tool_call_rewarding": True, "allow_subset": True,
               "parallel_tool_call_reward_mode": "fractional"}, 2 / 3),
    (2, 2, 4, {"parallel_tool_call_rewarding": True, "parallel_tool_call_reward_mode": "fractional"}, 0.0),
    (2, 4, 4, {"parallel_tool_call_rewarding": True, "parallel_tool_call_reward_mode": "fractional"}, 0.5),
    (2, 5, 4, {"parallel_tool_call_rewarding": True, "allow_superset": True,
               "parallel_tool_call_reward_mode": "f1"}, 4 / 9),
    (3, 3, 3, {"parallel_tool_call_rewarding": True, "parallel_tool_call_reward_mode": "f1"}, 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("num_matched", "num_calls", "num_expert_calls", "switches", "score"), SWITCHES)
async def test_nemo_gym_counts_calls_by_its_switches(
    num_matched: int, num_calls: int, num_expert_calls: int, switches: JsonObject, score: float
) -> None:
    calls = [call("f", x=number) for number in range(num_matched)] + [
        call("g", x=number) for number in range(num_calls - num_matched)
    ]
    expert = [call("f", x=number) for number in range(num_expert_calls)]
    verifier = get_verifier("tool_call", {"mode": "nemo_gym", "switches": switches})

    assert (await verifier(act(*calls), turn_of(*expert))).score == pytest.approx(score)


# (calls, expert, R): S_max = 1 + sum over expert of (1 + number of arguments)
TOOLRL: list[tuple[list[ToolCall], list[ToolCall], float]] = [
    ([call("f", x=1)], [call("f", x=1)], 3.0),  # (1 + 1 + 1) / 3
    ([call("f", x=2)], [call("f", x=1)], 1.0),  # (1 + 1 + 0) / 3
    ([call("f", y=1)], [call("f", x=1)], -1.0),  # (1 + 0 + 0) / 3
    ([call("f")], [call("f", x=1)], -1.0),  # (1 + 0 + 0) / 3
    ([call("f", x=1, y=2)], [call("f", x=1)], 2.0),  # (1 + 1/2 + 1) / 3
    ([call("g", x=1)], [call("f", x=1)], -3.0),
    ([], [call("f", x=1)], -3.0),
    ([call("f", x=1), call("f", x=1)], [call("f", x=1)], 2.0),  # (1/2 + 1 + 1) / 3
    ([call("f", x=1), call("g")], [call("f", x=1)], 2.0),
    ([call("f")], [call("f")], 3.0),  # (1 + 1) / 2
    ([call("f", x=1)], [call("f", x=1), call("g")], 0.75),  # (1/2 + 2) / 4
    ([call("g"), call("f", x=1)], [call("f", x=1), call("g")], 3.0),
    # The first expert call gets no credit and leaves the policy's call to the second: (1/2 + 0 + 1 + 1) / 5
    ([call("f", y=1)], [call("f", x=1), call("f", y=1)], 0.0),
]


@pytest.mark.parametrize(("calls", "expert", "expected_reward"), TOOLRL)
async def test_toolrl_rewards_each_part_that_is_right(
    calls: list[ToolCall], expert: list[ToolCall], expected_reward: float
) -> None:
    verdict = await get_verifier("tool_call", {"mode": "toolrl"})(act(*calls, text="."), turn_of(*expert))

    assert reward(share(calls, expert)) == pytest.approx(expected_reward)
    assert verdict.score == share(calls, expert)


async def test_toolrl_scores_every_action_the_same_where_the_expert_makes_no_call() -> None:
    verifier = get_verifier("tool_call", {"mode": "toolrl"})

    for action in (act(text="hi"), act(call("f"))):
        assert (await verifier(action, turn_of(text="hi"))).detail == "R_correct 0.000"


STRICT: list[tuple[Message, Turn, bool]] = [
    (act(call("f", x=1, y=2)), turn_of(call("f", y=2, x=1)), True),
    (act(call("f", x=1.0)), turn_of(call("f", x=1)), False),
    (act(call("f"), call("g")), turn_of(call("g"), call("f")), False),
    (act(call("f"), text="Now."), turn_of(call("f")), True),
    (act(text="Done. "), turn_of(text="Done."), True),
    (act(text="All done."), turn_of(text="Done."), False),
    (act(), turn_of(call("f")), False),
]
BROKEN = [turn_of(), turn_of(text=" "), turn_of(call("f", x=float("nan")))]


@pytest.mark.parametrize(("action", "turn", "is_accepted"), STRICT)
async def test_strict_is_equality(action: Message, turn: Turn, is_accepted: bool) -> None:
    assert (await get_verifier("tool_call", {"mode": "strict"})(action, turn)).score == float(is_accepted)


@pytest.mark.parametrize("turn", BROKEN)
@pytest.mark.parametrize("mode", ["functional", "strict"])
async def test_an_expert_that_equals_nothing_leaves_the_row_undecided(turn: Turn, mode: str) -> None:
    verifier = get_verifier("tool_call", {"mode": mode})

    for action in (act(), turn.expert, act(text="hi")):
        assert (await verifier(action, turn)).score is None


NAMES: list[tuple[Message, Turn, str]] = [
    (act(call("f", x=1)), turn_of(call("f", y=2)), "accepted"),
    (act(call("g"), call("f")), turn_of(call("f"), call("g")), "accepted"),
    (act(call("f"), call("f")), turn_of(call("f"), call("g")), "wrong_tool"),
    (act(call("f"), call("f")), turn_of(call("f")), "wrong_number_of_calls"),
    (act(text="hi"), turn_of(call("f")), "message_instead_of_call"),
    (act(text="hi"), turn_of(text="bye"), "accepted"),
]


@pytest.mark.parametrize(("action", "turn", "reason"), NAMES)
async def test_name_only_compares_names(action: Message, turn: Turn, reason: str) -> None:
    assert (await get_verifier("tool_call", {"mode": "name_only"})(action, turn)).reason == reason


ACCEPTED: JsonObject = {
    "f": {"x": [1, 2], "unit": ["m", "meter", ""], "box": [{"w": [1], "h": [2, ""]}], "l": [[1, 2]]}
}
FULL: JsonObject = {"x": 1, "unit": "m", "box": {"w": 1, "h": 2}, "l": [1, 2]}
VALUE_LISTS: list[tuple[JsonObject, bool]] = [
    (FULL, True),
    ({**FULL, "x": 2.0}, True),
    ({**FULL, "unit": "meter"}, True),
    ({name: value for name, value in FULL.items() if name != "unit"}, True),
    ({**FULL, "box": {"w": 1}}, True),
    ({**FULL, "x": 3}, False),
    ({**FULL, "x": "1"}, False),
    ({**FULL, "unit": "M"}, False),
    ({**FULL, "box": {"h": 2}}, False),
    ({**FULL, "box": {"w": 1, "h": 2, "d": 3}}, False),
    ({**FULL, "box": 1}, False),
    ({**FULL, "l": [2, 1]}, False),
    ({**FULL, "l": [1]}, False),
    ({**FULL, "extra": 1}, False),
    ({name: value for name, value in FULL.items() if name != "x"}, False),
    ({}, False),
]


@pytest.mark.parametrize(("arguments", "is_accepted"), VALUE_LISTS)
async def test_accepted_values_are_the_listed_ones(arguments: JsonObject, is_accepted: bool) -> None:
    verifier = get_verifier("tool_call", {"mode": "accepted_values", "accepted": [ACCEPTED]})

    assert (await verifier(act(ToolCall(name="f", arguments=arguments)), turn_of())).score == float(is_accepted)
    assert (await verifier(act(ToolCall(name="g", arguments=arguments)), turn_of())).score == 0.0


@pytest.mark.parametrize(
    "accepted",
    [
        {}, {"f": {}, "g": {}}, {"f": [1]}, {"f": {"x": 1}}, {"f": None}, {"f": {"x": []}},
        {"f": {"x": [float("nan")]}},
        {"f": {"x": [{"loc": "Paris"}]}}, {"f": {"x": [{"loc": []}]}}, {"f": {"x": [{"loc": [{"city": "Paris"}]}]}},
        {"f": {"x": [[{"city": "Paris"}]]}}, {"f": {"x": [{"loc": None}, "Paris"]}},
    ],
)  # fmt: skip
async def test_malformed_accepted_values_leave_the_row_undecided(accepted: JsonObject) -> None:
    verdict = await get_verifier("tool_call", {"mode": "accepted_values", "accepted": [accepted]})(
        act(call("f")), turn_of()
    )

    assert (verdict.score, verdict.reason) == (None, "broken_gold")


async def test_no_accepted_values_for_a_call_of_the_expert_leave_the_row_undecided() -> None:
    verdict = await get_verifier("tool_call", {"mode": "accepted_values", "accepted": []})(
        act(call("f")), make_turn(expert=act(call("f")))
    )

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
