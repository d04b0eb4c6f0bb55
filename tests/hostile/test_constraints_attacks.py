"""Texts that try to pass for the form that a row asks for; docs/verifier_attacks.md lists them."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.constraints_patterns import contains_match
from verl_pivot.verifiers.registry import get_verifier

PAGE = ROOT / "docs" / "verifier_attacks.md"
PERSON: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]+$"},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "uniqueItems": True},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMA: JsonObject = {"json_schema": PERSON}
NUMBERED: JsonObject = {
    "json_schema": {"patternProperties": {r"^\d+$": {"type": "integer"}}, "additionalProperties": False}
}
UNEVALUATED: JsonObject = {
    "json_schema": {
        "$ref": "#/$defs/numbered",
        "if": {"required": ["a"]},
        "then": {"properties": {"a": True}},
        "else": {"properties": {"b": True}},
        "unevaluatedProperties": False,
        "$defs": {"numbered": {"patternProperties": {"^[0-9]+$": {"type": "integer"}}}},
    }
}
META = "https://json-schema.org/draft/2020-12/schema"
DIALECT: JsonObject = {
    "json_schema": {
        "$schema": META,
        "properties": {"v": {"pattern": "^[0-9]+$"}, "next": {"$ref": "#"}},
    }
}
CHOICES: JsonObject = {"choices": ["A", "B", "C", "D"], "choice": "B"}
RIGHT_PERSON = '{"name": "Ann", "age": 3, "tags": [1, "1", true]}'


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


async def judge(text: str, options: JsonObject, expert: str = "x") -> Verdict:
    return await get_verifier("constraints", options)(say(text), make_turn(expert=say(expert)))


# {what the text does: (options, the text, reason)}
ATTACKS: dict[str, tuple[JsonObject, str, str]] = {
    "is no JSON": (SCHEMA, "name: Ann", "wrong_form"),
    "stands in a code block": (SCHEMA, f"```json\n{RIGHT_PERSON}\n```", "wrong_form"),
    "says more behind the value": (SCHEMA, f"{RIGHT_PERSON} done", "wrong_form"),
    "gives two values": (SCHEMA, RIGHT_PERSON * 2, "wrong_form"),
    "names a key twice": (SCHEMA, '{"name": 1, "name": "Ann", "age": 3}', "wrong_form"),
    "names a key twice by an escape": (SCHEMA, '{"n\\u0061me": 1, "name": "Ann", "age": 3}', "wrong_form"),
    "gives NaN": (SCHEMA, '{"name": "Ann", "age": NaN}', "wrong_form"),
    "gives true for a number": (SCHEMA, '{"name": "Ann", "age": true}', "wrong_form"),
    "gives a number as text": (SCHEMA, '{"name": "Ann", "age": "3"}', "wrong_form"),
    "gives a fraction": (SCHEMA, '{"name": "Ann", "age": 3.5}', "wrong_form"),
    "leaves out a key": (SCHEMA, '{"name": "Ann"}', "wrong_form"),
    "adds a key": (SCHEMA, '{"name": "Ann", "age": 3, "x": 1}', "wrong_form"),
    "breaks a pattern in a later line": (SCHEMA, '{"name": "Ann\\nx", "age": 3}', "wrong_form"),
    "repeats an item": (SCHEMA, '{"name": "Ann", "age": 3, "tags": [1, 1.0]}', "wrong_form"),
    "gives a list of the object": (SCHEMA, f"[{RIGHT_PERSON}]", "wrong_form"),
    "nests lists very deeply": (SCHEMA, "[" * 5000 + "]" * 5000, "wrong_form"),
    "nests lists in a key": (SCHEMA, f'{{"name": "Ann", "age": 3, "tags": {"[" * 200 + "]" * 200}}}', "wrong_form"),
    "gives a number of 5,000 digits": (SCHEMA, f'{{"name": "Ann", "age": {"9" * 5000}}}', "wrong_form"),
    "writes a line end behind a key": (NUMBERED, '{"1\\n": "x"}', "wrong_form"),
    "writes a key in digits of another script": (NUMBERED, '{"\u0663": "x"}', "wrong_form"),
    "adds a key beside patterns": (NUMBERED, '{"1": 1, "x": 1}', "wrong_form"),
    "adds a key that nothing evaluates": (UNEVALUATED, '{"1": 1, "a": 1, "1\\n": 1}', "wrong_form"),
    "breaks a pattern in a part with a dialect": (DIALECT, '{"next": {"next": {"v": "3\\n"}}}', "wrong_form"),
    "hides a forbidden pattern by half a character": (
        {"json_schema": {"type": "string", "not": {"pattern": "rm -rf"}}},
        '"rm -rf /\\ud800"',
        "wrong_form",
    ),
    "hides a key by half a character": (
        {"json_schema": {"patternProperties": {".*": {"type": "integer"}}}},
        '{"\\ud800": "x"}',
        "wrong_form",
    ),
    "is a book": (SCHEMA, json.dumps({"name": "A" + "a" * 70_000, "age": 3}), "too_long"),
    "names another choice": (CHOICES, "A", "wrong_form"),
    "names two choices": (CHOICES, "A or B", "wrong_form"),
    "names the right choice and another": (CHOICES, "B) or A)", "wrong_form"),
    "names the right choice and another small": (CHOICES, "B) or (a)", "wrong_form"),
    "names all choices": (CHOICES, "A B C D", "wrong_form"),
    "names no choice": (CHOICES, "the second one", "wrong_form"),
    "denies the choice": (CHOICES, "not B", "wrong_form"),
    "hides the choice in a word": (CHOICES, "Bravo", "wrong_form"),
    "writes a choice that looks alike": (CHOICES, "\u0412", "wrong_form"),
    "matches only in part": ({"pattern": r"\d{4}"}, "in 2024", "wrong_form"),
    "matches in the first line only": ({"pattern": r"\d{4}"}, "2024\nor so", "wrong_form"),
    "matches one side of an or": ({"pattern": "yes|no"}, "yes, or maybe", "wrong_form"),
    "says more than it may": ({"words": {"at_most": 3}}, "one two three four", "wrong_form"),
    "says less than it must": ({"words": {"at_least": 3}}, "one two - - -", "wrong_form"),
    "joins words": ({"sentences": {"at_least": 2}}, "One.Two.Three", "wrong_form"),
    "ends sentences of no word": ({"sentences": {"at_least": 3}}, "One. . . ! ? ...", "wrong_form"),
    "makes paragraphs of nothing": ({"paragraphs": {"at_least": 3}}, "One\n\n \n\n\n\n", "wrong_form"),
    "makes bullets of nothing": ({"bullets": {"at_least": 2}}, "- one\n-\n- \n--", "wrong_form"),
    "leaves placeholders empty": ({"placeholders": {"at_least": 1}}, "Dear [], hello", "wrong_form"),
    "hides a keyword in a word": ({"keywords": ["art"]}, "This is the start.", "wrong_form"),
    "parts a keyword": ({"keywords": ["New York"]}, "A new city, York", "wrong_form"),
    "says a forbidden word in capitals": ({"forbidden_words": ["sorry"]}, "SORRY!", "wrong_form"),
    "says a word too often": ({"occurrences": {"very": {"at_most": 1}}}, "very, very good", "wrong_form"),
    "begins otherwise": ({"starts_with": "Dear"}, " Hello, Dear", "wrong_form"),
    "ends otherwise": ({"ends_with": "Bye."}, "Bye. And more", "wrong_form"),
    "writes one capital": ({"letter_case": "lower"}, "all small But one", "wrong_form"),
    "writes no letter": ({"letter_case": "lower"}, "123", "wrong_form"),
    "writes a comma of another script": ({"has_no_commas": True}, "a\uff0c b", "wrong_form"),
    "leaves the title empty": ({"has_title": True}, "<<>> text", "wrong_form"),
    "opens quotes only": ({"is_quoted": True}, '"text', "wrong_form"),
    "names another choice in small bold letters": (CHOICES, "B) is wrong, **a** it is", "wrong_form"),
    "names another choice in quotes": (CHOICES, "B) is wrong, it is 'a'", "wrong_form"),
    "names another choice as the answer": (CHOICES, "B. The answer is c", "wrong_form"),
    "takes the choice back": (CHOICES, "B) no wait, c)", "wrong_form"),
    "denies the choice behind words": (CHOICES, "The answer is not (B)", "wrong_form"),
    "names two choices behind words": (CHOICES, "The answer is B or C", "wrong_form"),
    "joins two choices": (CHOICES, "B/C", "wrong_form"),
    "writes a choice in mathematical letters": (CHOICES, "\U0001d400", "wrong_form"),
    "counts underscores as words": ({"words": {"at_least": 3}}, "_ _ _", "wrong_form"),
    "counts characters without width as words": ({"words": {"at_least": 2}}, "a \u200b \u200b", "wrong_form"),
    "counts Hangul's invisible letter as words": ({"words": {"at_least": 2}}, "a \u3164 \u3164", "wrong_form"),
    "makes paragraphs of rules": ({"paragraphs": {"at_least": 3}}, "a\n\n***\n\n.", "wrong_form"),
    "makes paragraphs of characters without width": ({"paragraphs": {"at_least": 2}}, "a\n\n\u200b", "wrong_form"),
    "makes bullets of marks": ({"bullets": {"at_least": 2}}, "* *\n- -", "wrong_form"),
    "makes bullets of characters without width": ({"bullets": {"at_least": 1}}, "- \u200b", "wrong_form"),
    "makes placeholders of a blank": ({"placeholders": {"at_least": 1}}, "[ ] and [.]", "wrong_form"),
    "makes a title of points": ({"has_title": True}, "<<...>> text", "wrong_form"),
    "makes a title of nothing that is seen": ({"has_title": True}, "<<\u200b>> text", "wrong_form"),
    "hides a character in a forbidden word": ({"forbidden_words": ["sorry"]}, "so\u200brry", "wrong_form"),
    "hides a soft hyphen in a forbidden word": ({"forbidden_words": ["sorry"]}, "so\u00adrry", "wrong_form"),
    "writes a forbidden word in letters that look alike": (
        {"forbidden_words": ["sorry"]},
        "s\u043erry",
        "wrong_form",
    ),
    "writes a forbidden word in wide letters": ({"forbidden_words": ["sorry"]}, "\uff53orry", "wrong_form"),
    "takes a forbidden word apart": ({"forbidden_words": ["caf\u00e9"]}, "cafe\u0301", "wrong_form"),
    "joins a forbidden word to another": ({"forbidden_words": ["sorry"]}, "sorry-ish", "wrong_form"),
    "gives a forbidden word an ending": ({"forbidden_words": ["sorry"]}, "sorry's", "wrong_form"),
    "stresses a forbidden word": ({"forbidden_words": ["sorry"]}, "__sorry__", "wrong_form"),
    "writes an Arabic comma": ({"has_no_commas": True}, "a\u060c b", "wrong_form"),
    "writes an ideographic comma": ({"has_no_commas": True}, "a\u3001b", "wrong_form"),
    "writes a small comma": ({"has_no_commas": True}, "a\ufe50 b", "wrong_form"),
    "quotes nothing": ({"is_quoted": True}, '" "', "wrong_form"),
    "quotes its begin and its end": ({"is_quoted": True}, '"a" b "c"', "wrong_form"),
    "names a number that begins as a choice": ({"choices": ["1", "2"], "choice": "1"}, "1.5", "wrong_form"),
    "joins many words by hyphens": ({"words": {"at_most": 2}}, "a-b-c-d-e-f-g-h-i", "wrong_form"),
    "joins words by two hyphens": ({"words": {"at_most": 2}}, "one--two---three", "wrong_form"),
    "joins words by underscores": ({"words": {"at_most": 2}}, "one_two_three", "wrong_form"),
    "ends a sentence in bold": ({"sentences": {"at_most": 1}}, "**One.** Two.", "wrong_form"),
    "ends a sentence by a character without width": ({"sentences": {"at_most": 1}}, "One!\u200b Two", "wrong_form"),
    "parts paragraphs by a character without width": ({"paragraphs": {"at_most": 1}}, "a\n\u200b\nb", "wrong_form"),
    "parts paragraphs by a hard blank": ({"paragraphs": {"at_most": 1}}, "a\n\u00a0\nb", "wrong_form"),
    "parts paragraphs by other line ends": ({"paragraphs": {"at_most": 1}}, "a\r\n\r\nb", "wrong_form"),
    "parts paragraphs by Unicode's own sign": ({"paragraphs": {"at_most": 1}}, "a\u2029b", "wrong_form"),
    "makes bullets of dashes": ({"bullets": {"at_most": 0}}, "\u2013 a\n\u2014 b", "wrong_form"),
    "makes bullets of squares": ({"bullets": {"at_most": 0}}, "\u25aa a", "wrong_form"),
    "parts a forbidden word by a hyphen": ({"forbidden_words": ["sorry"]}, "I am so-rry.", "wrong_form"),
    "parts a forbidden word by points": ({"forbidden_words": ["sorry"]}, "S.o.r.r.y!", "wrong_form"),
    "parts a forbidden word by stars": ({"forbidden_words": ["sorry"]}, "so**rr**y", "wrong_form"),
    "parts a forbidden word by an underscore": ({"forbidden_words": ["sorry"]}, "sor_ry", "wrong_form"),
    "spells a forbidden word": ({"forbidden_words": ["sorry"]}, "I am s o r r y.", "wrong_form"),
    "writes digits of another script": ({"pattern": r"\d{3}-\d{4}"}, "\uff11\uff12\uff13-4567", "wrong_form"),
    "writes digits of another script in a class": ({"pattern": r"[\d-]+"}, "\u0661\u0662-3", "wrong_form"),
    "writes digits of another script in a schema": (
        {"json_schema": {"type": "string", "pattern": r"^\d+$"}},
        '"\u0967"',
        "wrong_form",
    ),
    "strikes a forbidden word through": ({"forbidden_words": ["no"]}, "n\u0336o\u0336", "wrong_form"),
    "writes a forbidden word with another hyphen": ({"forbidden_words": ["x-ray"]}, "x\u2010ray", "wrong_form"),
    "writes a forbidden word with another apostrophe": ({"forbidden_words": ["don't"]}, "don\u02bct", "wrong_form"),
    "parts a forbidden word by Hangul's invisible letter": ({"forbidden_words": ["no"]}, "n\u3164o", "wrong_form"),
    "joins a word that it says too often": ({"occurrences": {"very": {"at_most": 1}}}, "very-very", "wrong_form"),
    "says a word too often in letters that look alike": (
        {"occurrences": {"very": {"at_most": 1}}},
        "very v\u0435ry",
        "wrong_form",
    ),
    "says nothing": ({"words": {"at_most": 3}}, "  ", "no_answer"),
}
RIGHT: list[tuple[JsonObject, str]] = [
    (SCHEMA, RIGHT_PERSON),
    (SCHEMA, '{"age": 3.0, "name": "Ann"}'),
    (NUMBERED, '{"1": 1, "22": 2}'),
    (UNEVALUATED, '{"1": 1, "a": "x"}'),
    (UNEVALUATED, '{"1": 1, "b": "x"}'),
    (DIALECT, '{"next": {"next": {"v": "3"}}}'),
    ({"json_schema": {"properties": {"$schema": {"const": 1}}, "additionalProperties": False}}, '{"$schema": 1}'),
    ({"json_schema": {"patternProperties": {"(?i)^a": {}, "(?i)^b": {}}, "additionalProperties": False}}, '{"B": 1}'),
    ({"json_schema": {"properties": {"a": {}}, "additionalProperties": {"type": "null"}}}, '{"a": 1, "b": null}'),
    (
        {"json_schema": {"anyOf": [{"properties": {"a": {}}}, False], "unevaluatedProperties": {"type": "null"}}},
        '{"a": 1, "b": null}',
    ),
    ({"json_schema": {"type": "string"}}, '"\\ud83d\\ude00"'),
    (CHOICES, "B"),
    (CHOICES, " (b). "),
    (CHOICES, "**B**"),
    (CHOICES, "B) Paris is a city"),
    (CHOICES, "B. B is right"),
    (CHOICES, "Answer: B"),
    (CHOICES, "The answer is B."),
    (CHOICES, "The correct answer is (B)"),
    (CHOICES, "**Final answer:** B"),
    (CHOICES, "Option B"),
    (CHOICES, "B - Paris"),
    (CHOICES, "**B. Paris**"),
    (CHOICES, r"\text{B}"),
    (CHOICES, "[B]"),
    ({"keywords": ["don't"]}, "I don\u2019t"),
    ({"keywords": ["caf\u00e9"]}, "cafe\u0301"),
    ({"keywords": ["good"]}, "_good_"),
    ({"keywords": ["well-known", "stra\u00dfe"]}, "well\u2010known STRASSE"),
    ({"sentences": {"at_least": 3, "at_most": 3}}, '"One." **Two.** (Three.)'),
    ({"forbidden_words": ["sorry"]}, "sorrow and \u0441\u043e\u0440\u0440\u0438"),
    ({"sentences": {"at_least": 2, "at_most": 2}}, "\u4f60\u597d\u3002\u518d\u89c1\u3002"),
    ({"bullets": {"at_least": 2}}, "\u2022 a\n\u2022 b"),
    ({"is_quoted": True}, "\u201ca text\u201d"),
    ({"is_quoted": True}, 'He "said" so'.join('""')),
    ({"has_no_commas": True}, "a; b \u2019c\u2019"),
    ({"pattern": r"\d{4}|none"}, "2024"),
    ({"pattern": "yes|no"}, "no"),
    ({"words": {"at_least": 2, "at_most": 3}}, "It's well-known, yes"),
    ({"sentences": {"at_least": 2, "at_most": 2}}, 'He said "Go!" Then he went.'),
    ({"paragraphs": {"at_least": 2, "at_most": 2}}, "One\n \nTwo\nlines"),
    ({"bullets": {"at_least": 3}}, "* a\n - b\n2. c"),
    ({"placeholders": {"at_least": 2}}, "[name] of [town]"),
    ({"keywords": ["New York"], "forbidden_words": ["art"]}, "In new york, start."),
    ({"starts_with": "Dear", "ends_with": "Bye."}, "Dear you. Bye."),
    ({"letter_case": "upper", "capital_words": {"at_least": 2}}, "ALL LOUD 1"),
    ({"has_title": True, "is_quoted": True, "has_no_commas": True}, '"<<A title>> text"'),
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_text_of_another_form_is_refused(attack: str) -> None:
    options, text, reason = ATTACKS[attack]

    verdict = await judge(text, options)

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict
    assert len(verdict.detail) <= 500


@pytest.mark.parametrize(
    "keyword",
    ["pattern", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames", "$ref"],
)
async def test_no_pattern_of_a_schema_is_matched_by_an_engine_that_backtracks(
    keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(pattern: str, text: str) -> None:
        raise AssertionError(f"jsonschema matches {pattern} itself")

    slow = "^([a-z]+)+$"
    schemas: JsonObject = {
        "pattern": {"properties": {"v": {"pattern": slow}}},
        "patternProperties": {"patternProperties": {slow: {"type": "string"}}, "required": ["w"]},
        "additionalProperties": {"patternProperties": {slow: {}}, "additionalProperties": {"type": "null"}},
        "unevaluatedProperties": {"allOf": [{"patternProperties": {slow: {}}}], "unevaluatedProperties": False},
        "propertyNames": {"propertyNames": {"pattern": slow}},
        "$ref": {"$schema": META, "properties": {"v": {"pattern": slow}, "next": {"$ref": "#"}}},
    }
    options: JsonObject = {"json_schema": schemas[keyword]}
    await judge("{}", options)  # checks the schema
    for module in ("_keywords", "_legacy_keywords", "_utils"):
        monkeypatch.setattr(f"jsonschema.{module}.re", SimpleNamespace(search=search))
    text = {"v": "a" * 40 + "!", "a" * 40 + "!": 1}

    assert (await judge(json.dumps({**text, "next": text}), options)).reason == "wrong_form"


@pytest.mark.parametrize(("options", "text"), RIGHT)
async def test_a_text_of_the_form_is_accepted(options: JsonObject, text: str) -> None:
    verdict = await judge(text, options)

    assert verdict.score == 1.0, verdict


async def test_the_right_choice_may_be_the_experts() -> None:
    options: JsonObject = {"choices": ["A", "B"], "place": "answer_tag"}

    assert (await judge("<answer>b</answer>", options, "<answer>(B)</answer>")).score == 1.0
    assert (await judge("<answer>A</answer>", options, "<answer>(B)</answer>")).score == 0.0
    for expert in ("B", "<answer>A or B</answer>", "<answer>A</answer><answer>B</answer>"):
        assert (await judge("<answer>A</answer>", options, expert)).score is None


async def test_a_share_of_the_constraints_is_graded() -> None:
    options: JsonObject = {"score": "share", "words": {"at_most": 2}, "keywords": ["one", "two", "five"]}

    assert (await judge("one two", options)).score == 0.75
    assert (await judge("six", options)).score == 0.25
    assert (await judge("one five two six", {**options, "words": {"at_most": 4}})).score == 1.0


async def test_a_call_is_no_text() -> None:
    action = Message(role=Role.ASSISTANT, content="B", tool_calls=(ToolCall(name="f", arguments={}),))

    verdict = await get_verifier("constraints", CHOICES)(action, make_turn())

    assert (verdict.score, verdict.reason) == (0.0, "call_instead_of_message")


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/$defs/none"}, {"$ref": "http://127.0.0.1:9/x.json"}])
async def test_a_schema_that_refers_to_nothing_leaves_the_row_undecided(schema: Json) -> None:
    verdict = await judge("1", {"json_schema": schema})

    assert (verdict.score, verdict.reason) == (None, "broken_gold")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs at least one constraint"),
        ({"has_title": False}, "needs at least one constraint"),
        ({"choice": "A"}, "choice 'A' is not among the choices"),
        ({"choices": ["A", "a"]}, "choices must not be empty, and must differ"),
        ({"json_schema": {"type": "objekt"}}, "not a valid JSON schema: .*type"),
        ({"json_schema": {"items": {"pattern": "(?=x)"}}}, "not a regular expression without lookaround"),
        ({"pattern": r"(a)\1"}, "not a regular expression without lookaround"),
        ({"pattern": "a{1000}{1000}{1000}"}, "not a regular expression"),
        ({"words": {"at_least": 3, "at_most": 2}}, "at_most 2 is less than at_least 3"),
        ({"words": {}}, "needs at_least or at_most"),
        ({"keywords": ["..."]}, "must be words"),
        ({"occurrences": {"": {"at_least": 1}}}, "must be words"),
    ],
)
def test_constraints_that_cannot_hold_are_refused(options: JsonObject, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_verifier("constraints", options)


@given(st.text(), st.sampled_from([options for options, _, _ in ATTACKS.values()]))
async def test_every_text_gets_a_verdict(text: str, options: JsonObject) -> None:
    verdict = await judge(text, options)

    assert verdict.score in (0.0, 1.0)


@given(
    word=st.sampled_from(["sorry", "art", "caf\u00e9"]),
    place=st.integers(0, 3),
    hidden=st.sampled_from(["\u200b", "\u200d", "\u00ad", "\u2060", "\ufeff", "\u202e", "\u061c"]),
    around=st.sampled_from(["{}", "_{}_", "**{}**", "{}-like", "pre-{}", "{}'s", "({})", "{}!", "{}_x"]),
)
async def test_a_forbidden_word_is_found_in_any_dress(word: str, place: int, hidden: str, around: str) -> None:
    text = f"We say {around.format(word[:place] + hidden + word[place:])} here."

    assert (await judge(text, {"forbidden_words": [word]})).score == 0.0
    assert (await judge(text, {"forbidden_words": [f"{word}w"]})).score == 1.0


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=6))
async def test_an_enumerated_value_alone_fulfils_its_schema(value: Json) -> None:
    options: JsonObject = {"json_schema": {"enum": [value]}}

    assert (await judge(json.dumps(value), options)).score == 1.0
    assert (await judge(json.dumps([value, 0]), options)).score == 0.0


@given(st.text())
def test_a_dot_of_the_linear_engine_is_any_character_but_a_line_end(text: str) -> None:
    assert contains_match(r"\A.*\z", text) == ("\n" not in text)


def test_the_page_shows_them() -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, _, reason) in ATTACKS.items()]

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], "\n".join(rows)
