"""Options of `tool_call` for single arguments and for several experts: what they accept, and whom they ask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.tool_call_schemas import resolved


def act(*calls: tuple[str, JsonObject], text: str = "") -> Message:
    made = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    return Message(role=Role.ASSISTANT, content=text, tool_calls=made)


async def judge(action: Message, expert: Message, tools: tuple[JsonObject, ...] = (), **options: Json) -> Verdict:
    return await get_verifier("tool_call", options)(action, make_turn(expert=expert, tools=tools))


BASH: JsonObject = {"bash.command": {"name": "shell"}}


@pytest.mark.parametrize(
    ("arguments", "score", "reason"),
    [
        ({"command": "ls -a -l src", "why": "look"}, 1.0, "accepted"),
        ({"command": "ls -l -a src", "why": "look"}, 1.0, "accepted"),
        ({"command": "ls -a src", "why": "look"}, 0.0, "wrong_value"),
        ({"command": "ls -l -a src", "why": "see"}, 0.0, "wrong_value"),
        ({"why": "look"}, 0.0, "missing_argument"),
        ({"command": ["ls"], "why": "look"}, 0.0, "wrong_type"),
    ],
)
async def test_an_argument_with_a_verifier_of_its_own_is_compared_by_it(
    arguments: JsonObject, score: float, reason: str
) -> None:
    expert = act(("bash", {"command": "ls -a -l src", "why": "look"}))

    verdict = await judge(act(("bash", arguments)), expert, verifiers=BASH)

    assert (verdict.score, verdict.reason) == (score, reason)


async def test_a_verifier_of_messages_sees_the_argument_as_the_text() -> None:
    verifiers: Json = {"answer.text": {"name": "qa", "options": {"place": "all"}}}
    expert = act(("answer", {"text": "The Eiffel Tower"}))

    assert (await judge(act(("answer", {"text": "eiffel tower."})), expert, verifiers=verifiers)).score == 1.0
    assert (await judge(act(("answer", {"text": "CN Tower"})), expert, verifiers=verifiers)).score == 0.0
    assert (await judge(act(("answer", {"text": 7})), expert, verifiers=verifiers)).reason == "wrong_type"
    assert (
        await judge(act(("answer", {"text": "7"})), act(("answer", {"text": 7})), verifiers=verifiers)
    ).score is None


async def test_an_argument_that_the_expert_left_out_may_not_be_added() -> None:
    verdict = await judge(act(("bash", {"command": "ls"})), act(("bash", {})), verifiers=BASH)

    assert (verdict.score, verdict.reason) == (0.0, "extra_argument")


async def test_parallel_calls_find_the_partners_that_their_verifiers_accept() -> None:
    expert = act(("bash", {"command": "ls -a -l"}), ("bash", {"command": "pwd"}))
    swapped = act(("bash", {"command": "pwd"}), ("bash", {"command": "ls -l -a"}))
    twice = act(("bash", {"command": "pwd"}), ("bash", {"command": "pwd"}))

    assert (await judge(swapped, expert, verifiers=BASH)).score == 1.0
    assert (await judge(twice, expert, verifiers=BASH)).score == 0.0


async def test_an_argument_whose_verifier_cannot_tell_leaves_the_action_undecided() -> None:
    verifiers: Json = {"answer.text": {"name": "qa", "options": {"place": "answer_tag"}}}
    expert = act(("answer", {"text": "no tag"}))

    assert (await judge(expert, expert, verifiers=verifiers)).score is None
    assert (await judge(act(("answer", {"text": "no tag", "x": 1})), expert, verifiers=verifiers)).score == 0.0


MAIL: JsonObject = {"mail.message.body": {"name": "qa", "options": {"place": "all"}}}
MESSAGE: JsonObject = {"properties": {"to": {"type": "string"}, "body": {"type": "string"}, "parts": {"type": "array"}}}
MAIL_TOOLS: tuple[JsonObject, ...] = (
    {"function": {"name": "mail", "parameters": {"properties": {"message": {"type": "object", **MESSAGE}}}}},
)


@pytest.mark.parametrize(
    ("arguments", "score", "reason"),
    [
        ({"message": {"to": "Ann", "body": "the tower."}}, 1.0, "accepted"),
        ({"message": {"to": "Ann", "body": "the bridge"}}, 0.0, "wrong_value"),
        ({"message": {"to": "Bob", "body": "the tower"}}, 0.0, "wrong_value"),
        ({"message": {"to": "Ann"}}, 0.0, "missing_argument"),
        ({"message": {"to": "Ann", "body": ["the tower"]}}, 0.0, "wrong_type"),
        ({"message": "the tower"}, 0.0, "wrong_type"),
        ({}, 0.0, "missing_argument"),
    ],
)
async def test_an_argument_within_an_object_is_compared_by_its_verifier(
    arguments: JsonObject, score: float, reason: str
) -> None:
    expert = act(("mail", {"message": {"to": "Ann", "body": "The Tower"}}))

    for tools in ((), MAIL_TOOLS):
        verdict = await judge(act(("mail", arguments)), expert, tools, verifiers=MAIL)

        assert (verdict.score, verdict.reason) == (score, reason)


async def test_an_argument_in_another_object_is_not_the_experts() -> None:
    expert = act(("mail", {"message": {"to": "Ann", "body": "The Tower"}}))

    for message in ({"to": "Ann"}, {"to": "Ann", "body": "the bridge"}):
        action = act(("mail", {"message": message, "message.body": "The Tower"}))
        assert (await judge(action, expert, verifiers=MAIL)).score == 0.0


async def test_an_argument_of_a_tool_with_a_dot_in_its_name_is_compared_by_its_verifier() -> None:
    expert = act(("math.factorial", {"number": "5", "base": {"of": "Ten"}}))
    right: JsonObject = {"number": "5", "base": {"of": "ten"}}

    for name in ("qa", "shell"):
        part: JsonObject = {"name": name, "options": {"place": "all"} if name == "qa" else {}}
        verifiers: JsonObject = {"math.factorial.number": part, "math.factorial.base.of": MAIL["mail.message.body"]}
        assert (await judge(act(("math.factorial", right)), expert, verifiers=verifiers)).score == 1.0
        for other in ({**right, "number": "999"}, {**right, "base": {"of": "two"}}, {"number": "5"}):
            assert (await judge(act(("math.factorial", other)), expert, verifiers=verifiers)).score == 0.0
        misplaced = act(("math", {"factorial.number": "5", "factorial.base": {"of": "Ten"}}))
        assert (await judge(misplaced, expert, verifiers=verifiers)).reason == "wrong_tool"


CWD: JsonObject = {"bash.cwd": {"name": "qa", "options": {"place": "all"}}}


@pytest.mark.parametrize(
    ("default", "required", "given", "by_expert", "score", "reason"),
    [
        ("here", [], {"cwd": "here"}, {}, 1.0, "accepted"),
        ("here", [], {}, {"cwd": "here"}, 1.0, "accepted"),
        ("here", [], {}, {}, 1.0, "accepted"),
        (5, [], {}, {}, 1.0, "accepted"),
        (5, [], {"cwd": 5}, {}, 1.0, "accepted"),
        ("here", [], {"cwd": "src"}, {}, 0.0, "wrong_value"),
        ("here", [], {}, {"cwd": "src"}, 0.0, "wrong_value"),
        ("here", ["cwd"], {}, {"cwd": "here"}, 0.0, "missing_argument"),
    ],
)
async def test_the_default_of_an_argument_with_a_verifier_may_be_left_out_or_given(
    default: Json, required: Json, given: JsonObject, by_expert: JsonObject, score: float, reason: str
) -> None:
    properties: JsonObject = {"command": {"type": "string"}, "cwd": {"default": default}}
    tools: tuple[JsonObject, ...] = (
        {"function": {"name": "bash", "parameters": {"properties": properties, "required": required}}},
    )
    action, expert = (act(("bash", {"command": "ls", **each})) for each in (given, by_expert))

    verdict = await judge(action, expert, tools, verifiers=CWD)

    assert (verdict.score, verdict.reason) == (score, reason)


@pytest.mark.parametrize("argument", ["mail.message.text", "mail.body", "mail.message.parts.body", "mail.message.to.x"])
async def test_a_verifier_of_an_argument_that_no_tool_has_leaves_the_row_undecided(argument: str) -> None:
    action = act(("mail", {"message": {"to": "Ann", "parts": [{"body": "x"}]}}))

    verdict = await judge(action, action, MAIL_TOOLS, verifiers={argument: MAIL["mail.message.body"]})

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
    assert argument in verdict.detail


ITEMS: JsonObject = {"type": "array", "items": {"properties": {"note": {"type": "string"}, "tags": {"type": "array"}}}}
ORDER: tuple[JsonObject, ...] = (
    {"function": {"name": "order", "parameters": {"properties": {"items": ITEMS, "days": {"type": "array"}}}}},
)


@pytest.mark.parametrize("option", ["dates", "paths", "enums", "free_text", "unordered", "ignored"])
async def test_an_option_for_an_argument_that_no_tool_has_leaves_the_row_undecided(option: str) -> None:
    async def verdict_on(action: Message, argument: str, tools: tuple[JsonObject, ...] = ORDER) -> Verdict:
        options: JsonObject = {option: [argument]}
        return await get_verifier("tool_call", options)(action, make_turn(expert=action, tools=tools))

    action = act(("order", {"items": [{"note": "x"}], "days": []}))
    unlisted = act(("order", {"items": [{"more": ["x"]}]}))

    for argument in ("order.note", "order.items.text", "order.items.note.x"):
        verdict = await verdict_on(action, argument)
        assert (verdict.score, verdict.reason) == (None, "broken_gold")
        assert f"the option {option} names {argument}" in verdict.detail
    for argument in ("order.items.note", "order.items.tags.x", "order.days.x", "order.items", "pay.note"):
        assert (await verdict_on(action, argument)).score == 1.0
    assert (await verdict_on(unlisted, "order.items.more")).score == 1.0
    assert (await verdict_on(action, "order.note", ())).score == 1.0


async def test_an_array_whose_schema_refers_to_itself_may_have_any_key() -> None:
    loop: JsonObject = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}}}
    tools = tool({"properties": {"x": {"$ref": "#/$defs/A"}}, "$defs": loop["$defs"]})
    action = act(("f", {"x": [[]]}))

    assert (await judge(action, action, tools, ignored=["f.x.y"])).score == 1.0


async def test_a_verifier_of_an_argument_of_another_tool_has_no_effect() -> None:
    action = act(("mail", {"message": {"to": "Ann"}}))
    tools: tuple[JsonObject, ...] = (
        *MAIL_TOOLS,
        {"function": {"name": "mail.draft", "parameters": {"properties": {"text": {"type": "string"}}}}},
    )
    verifiers: JsonObject = dict.fromkeys(("chat.text", "mail.draft.text"), MAIL["mail.message.body"])

    assert (await judge(action, action, tools, verifiers=verifiers)).score == 1.0


async def test_an_ignored_argument_may_differ_and_may_be_left_out() -> None:
    expert = act(("bash", {"command": "ls", "description": "List files"}))

    for arguments in ({"command": "ls", "description": "Look"}, {"command": "ls"}):
        assert (await judge(act(("bash", arguments)), expert, ignored=["bash.description"])).score == 1.0
        assert (await judge(act(("bash", arguments)), expert)).score == 0.0
    wrong = act(("bash", {"command": "rm", "description": "List files"}))
    assert (await judge(wrong, expert, ignored=["bash.description"])).score == 0.0


OTHER: Json = [
    {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": {"id": 2}}}]},
    {"role": "assistant", "content": "Which one?"},
]


@pytest.mark.parametrize(
    ("action", "score"),
    [
        (act(("find", {"id": 1})), 1.0),
        (act(("find", {"id": 2})), 1.0),
        (act(text="Which do you mean?"), 1.0),
        (act(("find", {"id": 3})), 0.0),
        (act(("find", {"id": 1}), ("find", {"id": 2})), 0.0),
        (act(), 0.0),
    ],
)
async def test_each_of_several_experts_is_right(action: Message, score: float) -> None:
    assert (await judge(action, act(("find", {"id": 1})), other_experts=OTHER)).score == score


async def test_a_broken_expert_beside_a_sound_one_refuses_nothing_and_accepts_what_the_sound_one_does() -> None:
    silent: Json = [{"role": "assistant", "content": ""}]

    assert (await judge(act(("find", {"id": 1})), act(("find", {"id": 1})), other_experts=silent)).score == 1.0
    assert (await judge(act(("find", {"id": 2})), act(("find", {"id": 1})), other_experts=silent)).score is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "strict", "ignored": ["f.x"]}, "ignored is an option of mode 'functional', not of 'strict'"),
        ({"mode": "strict", "dates": True}, "dates is an option of mode 'functional', not of 'strict'"),
        (
            {"mode": "toolrl", "min_similarity": 0.7},
            "min_similarity is an option of mode 'functional', not of 'toolrl'",
        ),
        ({"threshold": 0.3}, "threshold is an option of mode 'nemo_gym', not of 'functional'"),
        ({"accepted": [{"f": {}}]}, "accepted is an option of mode 'accepted_values', not of 'functional'"),
        ({"switches": {}}, "switches is an option of mode 'nemo_gym', not of 'functional'"),
        ({"mode": "nemo_gym", "switches": {"surplus": 1}}, "switches.surplus: unknown key"),
        ({"mode": "accepted_values", "other_experts": [{"role": "assistant"}]}, "other_experts have no effect"),
        ({"other_experts": [{"role": "user", "content": "x"}]}, "must be a message of the assistant, got role 'user'"),
        ({"other_experts": ["x"]}, "is not a message: a message must be a JSON object, got text"),
        ({"verifiers": {"bash": {"name": "shell"}}}, "must be 'tool.argument', got 'bash'"),
        ({"verifiers": {"bash.command": {"name": "nobody"}}}, "unknown verifier 'nobody'"),
        ({"verifiers": {"bash.command": {"name": "tool_call"}}}, "verifiers.bash.command: tool_call accepts any text"),
        ({"verifiers": {"bash.command": {"name": "shell", "options": {"mode": "loose"}}}}, "shell.mode"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options: JsonObject, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_verifier("tool_call", options)


def tool(parameters: JsonObject) -> tuple[JsonObject, ...]:
    return ({"type": "function", "function": {"name": "f", "parameters": parameters}},)


DEFAULTS: list[JsonObject] = [
    {"properties": {"x": {"type": "integer", "default": 3}}},
    {"properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": "integer", "default": 3}}},
    {"properties": {"x": {"allOf": [{"$ref": "#/$defs/X"}], "default": 3}}, "$defs": {"X": {"type": "integer"}}},
    {"properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3}}},
    {"$ref": "#/$defs/All", "$defs": {"All": {"properties": {"x": {"default": 3}}}}},
]


@pytest.mark.parametrize("parameters", DEFAULTS)
async def test_a_default_is_found_wherever_the_schema_hides_it(parameters: JsonObject) -> None:
    given_, left_out, other = act(("f", {"x": 3})), act(("f", {})), act(("f", {"x": 4}))

    assert (await judge(left_out, given_, tool(parameters))).score == 1.0
    assert (await judge(given_, left_out, tool(parameters))).score == 1.0
    assert (await judge(left_out, other, tool(parameters))).score == 0.0
    assert (await judge(left_out, given_, tool({**parameters, "required": ["x"]}))).reason == "missing_argument"
    assert (await judge(left_out, left_out, tool({**parameters, "required": ["x"]}))).score == 1.0


def test_a_schema_that_refers_to_itself_ends() -> None:
    loop: JsonObject = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}

    assert resolved(loop, loop) == {}
    assert resolved({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {}) == {}
    assert resolved({"oneOf": [{"type": "null"}, {"type": "integer"}]}, {}) == {"type": "integer"}


WHOLE_SCHEMAS: list[Json] = [
    None, {"type": "integer"}, {"type": "number"}, {"type": ["integer", "null"]}, {"$ref": "#/$defs/X"}, {},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"type": "array"}, {"type": "array", "items": {}}, True,
]  # fmt: skip
whole = st.integers() | st.integers(-(2**70), 2**70) | st.integers(-(2**53), 2**53).map(float)


@given(whole, whole, st.sampled_from(WHOLE_SCHEMAS), st.sampled_from([0.0, 1e-13, 0.09]), st.booleans())
async def test_whole_numbers_are_equal_or_not_whatever_the_schema_and_the_tolerance(
    value: float, other: float, schema: Json, tolerance: float, is_listed: bool
) -> None:
    parameters: JsonObject = {"properties": {"x": schema}, "$defs": {"X": {"type": "integer"}}}
    one, two = ([value], [other]) if is_listed else (value, other)

    verdict = await judge(act(("f", {"x": one})), act(("f", {"x": two})), tool(parameters), number_tolerance=tolerance)

    assert verdict.score == float(value == other)


fractions = st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: not value.is_integer())


@given(fractions, st.floats(0.5, 2.0))
async def test_numbers_with_fractions_differ_from_a_billionth_on(value: float, factor: float) -> None:
    other = value * factor
    is_far = abs(value - other) > 1e-9 * max(abs(value), abs(other))

    score = (await judge(act(("f", {"x": other})), act(("f", {"x": value})))).score

    assert score == 0.0 or not is_far


async def test_a_turn_of_messages_ignores_the_options_of_calls() -> None:
    turn: Turn = make_turn(expert=act(text="Done."))
    verifier = get_verifier("tool_call", {"verifiers": BASH, "ignored": ["bash.why"]})

    assert (await verifier(act(text="All done."), turn)).score == 1.0
    assert (await verifier(act(("bash", {})), turn)).score == 0.0


async def test_accepted_values_may_leave_out_no_argument_that_the_schema_requires() -> None:
    accepted: Json = [{"f": {"x": [1], "y": [2, ""]}}]
    action = act(("f", {"x": 1}))

    for required, score in ((["x"], 1.0), (["x", "y"], 0.0)):
        tools = tool({"properties": {"x": {}, "y": {}}, "required": required})
        assert (await judge(action, action, tools, mode="accepted_values", accepted=accepted)).score == score
