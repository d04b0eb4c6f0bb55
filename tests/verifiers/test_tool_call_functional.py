"""verifiers.tool_call_functional, through `tool_call`: calls are equal if a tool would not notice the difference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier

BOOKING: JsonObject = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "flight": {"type": "string"},
                "seats": {"type": "integer"},
                "price": {"type": "number"},
                "cabin": {"type": "string", "enum": ["economy", "business"], "default": "economy"},
                "day": {"type": "string", "format": "date"},
                "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
                "stops": {"type": "array", "items": {"type": "string"}},
                "file": {"type": "string"},
                "days": {"type": "array", "items": {"type": "string"}},
                "bags": {
                    "type": "array",
                    "items": {"properties": {"note": {"type": "string"}, "tags": {"type": "array"}}},
                },
                "note": {"type": "string"},
                "payer": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "currency": {"type": "string", "default": "EUR"}},
                },
            },
            "required": ["flight"],
        },
    },
}


def act(*arguments: JsonObject, name: str = "book") -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=tuple(ToolCall(name=name, arguments=each) for each in arguments))


def turn_of(*expert: JsonObject) -> Turn:
    return make_turn(expert=act(*expert), tools=(BOOKING,))


async def judge(actual: JsonObject, expert: JsonObject, **options: Json) -> Verdict:
    return await get_verifier("tool_call", options)(act(actual), turn_of(expert))


SAME: list[tuple[JsonObject, JsonObject, JsonObject]] = [
    ({"flight": "LH1", "cabin": "economy"}, {"flight": "LH1"}, {}),
    ({"flight": "LH1"}, {"flight": "LH1", "cabin": "economy"}, {}),
    ({"price": 9.5, "flight": "LH1"}, {"flight": "LH1", "price": 9.5}, {}),
    ({"flight": "LH1", "seats": 2.0}, {"flight": "LH1", "seats": 2}, {}),
    ({"flight": "LH1", "price": 0.30000000000000004}, {"flight": "LH1", "price": 0.3}, {}),
    ({"flight": "LH1", "tags": ["b", "a"]}, {"flight": "LH1", "tags": ["a", "b"]}, {}),
    ({"flight": "LH1", "stops": ["b", "a"]}, {"flight": "LH1", "stops": ["a", "b"]}, {"unordered": ["book.stops"]}),
    ({"flight": "LH1", "days": ["May 3, 2024"]}, {"flight": "LH1", "days": ["2024-05-03"]}, {"dates": ["book.days"]}),
    ({"flight": "LH1", "bags": [{"note": "red"}, {}]}, {"flight": "LH1", "bags": [{"note": "blue"}, {"note": "x"}]},
     {"ignored": ["book.bags.note"]}),
    ({"flight": "LH1", "bags": [{"note": "window, please"}]}, {"flight": "LH1", "bags": [{"note": "Window please"}]},
     {"free_text": ["book.bags.note"]}),
    ({"flight": "LH1", "bags": [{"tags": [1, 2]}]}, {"flight": "LH1", "bags": [{"tags": [2, 1]}]},
     {"unordered": ["book.bags.tags"]}),
    ({"flight": "LH1", "payer": {"name": "Ann"}}, {"flight": "LH1", "payer": {"name": "Ann", "currency": "EUR"}}, {}),
    ({"flight": "LH1", "day": "2024/05/03"}, {"flight": "LH1", "day": "2024-05-03"}, {"dates": True}),
    ({"flight": "LH1", "day": "May 3, 2024"}, {"flight": "LH1", "day": "2024-05-03"}, {"dates": True}),
    ({"flight": "LH1", "cabin": " Business"}, {"flight": "LH1", "cabin": "business"}, {"enums": True}),
    ({"flight": "LH1", "file": "./a//c/"}, {"flight": "LH1", "file": "a/c"}, {"paths": ["book.file"]}),
    ({"flight": "LH1", "note": "Window seat,  please"}, {"flight": "LH1", "note": "window seat, please!"},
     {"free_text": ["book.note"]}),
]  # fmt: skip

DIFFERENT: list[tuple[JsonObject, JsonObject, JsonObject, str]] = [
    ({"flight": "LH1", "cabin": "business"}, {"flight": "LH1"}, {}, "wrong_value"),
    ({"flight": "LH1"}, {"flight": "LH1", "cabin": "business"}, {}, "wrong_value"),
    ({"cabin": "economy"}, {"flight": "LH1"}, {}, "missing_argument"),
    ({}, {"flight": "LH1"}, {}, "missing_argument"),
    ({"flight": "LH1", "seats": 2}, {"flight": "LH1"}, {}, "extra_argument"),
    ({"flight": "LH1", "meal": "fish"}, {"flight": "LH1"}, {}, "unknown_argument"),
    ({"flight": "lh1"}, {"flight": "LH1"}, {}, "wrong_value"),
    ({"flight": "LH1 "}, {"flight": "LH1"}, {}, "wrong_value"),
    ({"flight": "LΗ1"}, {"flight": "LH1"}, {}, "wrong_value"),  # noqa: RUF001  a Greek letter
    ({"flight": ["LH1"]}, {"flight": "LH1"}, {}, "wrong_type"),
    ({"flight": "LH1", "seats": "2"}, {"flight": "LH1", "seats": 2}, {}, "wrong_type"),
    ({"flight": "LH1", "seats": True}, {"flight": "LH1", "seats": 1}, {}, "wrong_type"),
    ({"flight": "LH1", "seats": 2.0000001}, {"flight": "LH1", "seats": 2}, {}, "wrong_value"),
    ({"flight": "LH1", "price": 9.5001}, {"flight": "LH1", "price": 9.5}, {}, "wrong_value"),
    ({"flight": "LH1", "price": float("nan")}, {"flight": "LH1", "price": 9.5}, {}, "wrong_value"),
    ({"flight": "LH1", "price": float("inf")}, {"flight": "LH1", "price": 9.5}, {}, "wrong_value"),
    ({"flight": "LH1", "price": 10**400}, {"flight": "LH1", "price": 9.5}, {}, "wrong_value"),
    ({"flight": "LH1", "tags": ["a", "a"]}, {"flight": "LH1", "tags": ["a", "b"]}, {}, "wrong_value"),
    ({"flight": "LH1", "tags": []}, {"flight": "LH1", "tags": ["a"]}, {}, "wrong_value"),
    ({"flight": "LH1", "stops": ["b", "a"]}, {"flight": "LH1", "stops": ["a", "b"]}, {}, "wrong_value"),
    ({"flight": "LH1", "payer": {"currency": "EUR"}}, {"flight": "LH1", "payer": {"name": "Ann"}}, {},
     "missing_argument"),
    ({"flight": "LH1", "day": "2024/05/03"}, {"flight": "LH1", "day": "2024-05-03"}, {}, "wrong_value"),
    ({"flight": "LH1", "day": "2024-05-04"}, {"flight": "LH1", "day": "2024-05-03"}, {"dates": True}, "wrong_value"),
    ({"flight": "LH1", "day": "soon"}, {"flight": "LH1", "day": "later"}, {"dates": True}, "wrong_value"),
    ({"flight": "2024/05/03"}, {"flight": "2024-05-03"}, {"dates": True}, "wrong_value"),
    ({"flight": "LH1", "cabin": "first"}, {"flight": "LH1", "cabin": "economy"}, {"enums": True}, "wrong_value"),
    ({"flight": "LH1", "cabin": "FIRST"}, {"flight": "LH1", "cabin": "first"}, {"enums": True}, "wrong_value"),
    ({"flight": "LH1", "file": "a/d"}, {"flight": "LH1", "file": "a/c"}, {"paths": ["book.file"]}, "wrong_value"),
    ({"flight": "LH1", "file": ""}, {"flight": "LH1", "file": "."}, {"paths": ["book.file"]}, "wrong_value"),
    ({"flight": "LH1", "note": ""}, {"flight": "LH1", "note": "window"}, {"free_text": ["book.note"]}, "wrong_value"),
    ({"flight": "LH1", "bags": [{"tags": [1]}, {}]}, {"flight": "LH1", "bags": [{}, {"tags": [1]}]},
     {"unordered": ["book.bags.tags"]}, "extra_argument"),
    ({"flight": "LH1", "days": ["2024-05-04"]}, {"flight": "LH1", "days": ["2024-05-03"]}, {"dates": ["book.days"]},
     "wrong_value"),
    ({"flight": "LH1", "note": "aisle"}, {"flight": "LH1", "note": "window"}, {"free_text": ["book.note"]},
     "wrong_value"),
    ({"flight": "LH1", "note": "window " * 50}, {"flight": "LH1", "note": "window"}, {"free_text": ["book.note"]},
     "wrong_value"),
    ({"flight": "window", "note": "window"}, {"flight": "windows", "note": "window"}, {"free_text": ["book.note"]},
     "wrong_value"),
]  # fmt: skip


@pytest.mark.parametrize(("actual", "expert", "options"), SAME)
async def test_what_the_tool_would_not_notice_is_accepted(
    actual: JsonObject, expert: JsonObject, options: JsonObject
) -> None:
    assert (await judge(actual, expert, **options)).reason == "accepted"


@pytest.mark.parametrize(("actual", "expert", "options", "reason"), DIFFERENT)
async def test_what_the_tool_would_notice_is_refused(
    actual: JsonObject, expert: JsonObject, options: JsonObject, reason: str
) -> None:
    verdict = await judge(actual, expert, **options)

    assert (verdict.score, verdict.reason) == (0.0, reason)


@pytest.mark.parametrize("expert", [expert for _, expert, _, _ in DIFFERENT])
async def test_every_expert_is_accepted_by_its_own_rule(expert: JsonObject) -> None:
    every = {"dates": True, "enums": True, "paths": True, "free_text": ["book.note"], "unordered": ["book.stops"]}

    assert (await judge(expert, expert)).score == 1.0
    assert (await judge(expert, expert, **every)).score == 1.0


async def test_parallel_calls_find_the_partners_that_fit_all() -> None:
    """The first expert call fits two calls, the second only one: pairing each with the first that fits would fail."""
    expert: list[JsonObject] = [{"flight": "LH1", "note": "a window seat"}, {"flight": "LH1", "note": "a window"}]
    actual: list[JsonObject] = [{"flight": "LH1", "note": "a window"}, {"flight": "LH1", "note": "a window seat!"}]
    verifier = get_verifier("tool_call", {"free_text": ["book.note"], "min_similarity": 0.7})

    assert (await verifier(act(*actual), turn_of(*expert))).score == 1.0
    assert (await verifier(act(actual[0], actual[0]), turn_of({"flight": "LH2"}, actual[0]))).score == 0.0


async def test_a_tool_without_a_schema_is_compared_without_defaults() -> None:
    turn = make_turn(expert=act({"x": 1}, name="other"), tools=(BOOKING,))
    verifier = get_verifier("tool_call")

    assert (await verifier(act({"x": 1.0}, name="other"), turn)).score == 1.0
    assert (await verifier(act({"x": 1, "y": None}, name="other"), turn)).reason == "extra_argument"


SCHEMAS: list[Json] = [
    None, [], "object", {"properties": []}, {"properties": {"x": True}}, {"properties": {"x": {"enum": 3, "items": 4}}},
    {"$ref": "#"}, {"properties": {"x": {"type": ["integer", "null"], "default": {"$ref": "#"}}}},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_an_invalid_schema_is_ignored(schema: Json) -> None:
    tool: JsonObject = {"type": "function", "function": {"name": "book", "parameters": schema}}
    turn = make_turn(expert=act({"x": 1}), tools=(tool,))
    verifier = get_verifier("tool_call", {"enums": True, "dates": True})

    assert (await verifier(act({"x": 1}), turn)).score == 1.0
    assert (await verifier(act({"x": 2}), turn)).score == 0.0


def nested(depth: int) -> Json:
    value: Json = 1
    for _ in range(depth):
        value = [value]
    return value


async def test_deeply_nested_arguments_are_refused_and_undecided_if_they_are_the_experts() -> None:
    deep = await judge({"x": nested(900)}, {"x": 1})
    broken = await judge({"x": 1}, {"x": nested(900)})

    assert (deep.score, deep.reason) == (0.0, "too_deep")
    assert (broken.score, broken.reason) == (None, "broken_gold")


async def test_arguments_that_contain_themselves_are_refused() -> None:
    loop: list[Json] = []
    loop.append(loop)

    assert (await judge({"x": loop}, {"x": 1})).reason == "too_deep"


async def test_ten_megabytes_of_arguments_are_compared() -> None:
    large = "x" * 10_000_000

    refused = await judge({"flight": large}, {"flight": "LH1"})

    assert (await judge({"flight": large}, {"flight": large})).score == 1.0
    assert refused.reason == "wrong_value"
    assert len(refused.detail) < 1000


json_values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
arguments = st.dictionaries(st.sampled_from([*"abc", "flight", "cabin", "tags", "day", "price"]), json_values)
MODES = ["functional", "strict", "name_only", "nemo_gym", "toolrl"]


@given(arguments, arguments, st.sampled_from(MODES))
async def test_no_mode_raises_on_any_json(actual: JsonObject, expert: JsonObject, mode: str) -> None:
    verdict = await judge(actual, expert, mode=mode)

    assert verdict.score is None or 0.0 <= verdict.score <= 1.0


@given(arguments, arguments)
async def test_functional_equality_is_symmetric(one: JsonObject, other: JsonObject) -> None:
    assert ((await judge(one, other)).score == 1.0) == ((await judge(other, one)).score == 1.0)


@given(arguments, st.randoms(use_true_random=False))
async def test_the_order_of_keys_does_not_matter(expert: JsonObject, rng: object) -> None:
    items = list(expert.items())
    rng.shuffle(items)  # type: ignore[attr-defined]

    for mode in MODES:
        same = await judge(expert, expert, mode=mode)
        assert (await judge(dict(items), expert, mode=mode)) == same


@given(
    st.lists(st.integers(-3, 3) | st.text("ab", max_size=1), min_size=257, max_size=300),
    st.permutations(range(300)),
    st.booleans(),
)
async def test_a_long_array_without_an_order_is_the_same_multiset(
    items: list[Json], order: list[int], is_changed: bool
) -> None:
    given_items = [items[place] for place in order if place < len(items)]
    if is_changed:
        given_items[0] = 4 if given_items[0] != 4 else 5

    verdict = await judge(
        {"flight": "LH1", "stops": given_items}, {"flight": "LH1", "stops": items}, unordered=["book.stops"]
    )

    assert verdict.score == float(not is_changed), verdict


async def test_items_of_a_long_array_may_be_spelt_otherwise() -> None:
    expert: JsonObject = {"flight": "LH1", "stops": [{"n": number} for number in range(400)]}
    spelt: JsonObject = {"flight": "LH1", "stops": [{"n": float(number)} for number in reversed(range(400))]}
    wrong: JsonObject = {"flight": "LH1", "stops": [{"n": number} for number in range(1, 401)]}

    assert (await judge(spelt, expert, unordered=["book.stops"])).score == 1.0
    assert (await judge(wrong, expert, unordered=["book.stops"])).reason == "wrong_value"
