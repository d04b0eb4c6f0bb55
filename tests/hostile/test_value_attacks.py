"""Values that try to pass for the expert's under the most lenient schema or option.

docs/verifier_attacks.md lists them.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier

PAGE = ROOT / "docs" / "verifier_attacks.md"

NO_SCHEMA: Json = None
NUMBER: Json = {"type": "number"}
OR_NULL: Json = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
TEXT: Json = {"type": "string"}
DATE: Json = {"type": "string", "format": "date"}
INTERVALS: Json = {"type": "string", "enum": ["1m", "1M", "1h"]}
CABINS: Json = {"type": "string", "enum": ["economy", "business"]}
PROSE: JsonObject = {"free_text": ["act.x"], "min_similarity": 0.5}
PATHS: JsonObject = {"paths": ["act.x"]}

# (the expert's value, the policy's value, schema of the argument, options of the verifier)
Case = tuple[Json, Json, Json, JsonObject]
ATTACKS: dict[str, Case] = {
    "the next id, without a schema": (1234567890, 1234567891, NO_SCHEMA, {}),
    "the next id, of type number": (1234567890, 1234567891, NUMBER, {}),
    "the next id, of type integer or null": (1234567890, 1234567891, {"type": ["integer", "null"]}, {}),
    "the next id, of anyOf integer and null": (1234567890, 1234567891, OR_NULL, {}),
    "the next id, behind a $ref": (1234567890, 1234567891, {"$ref": "#/$defs/Id"}, {}),
    "the next id, in an array without items": ([1234567890], [1234567891], {"type": "array"}, {}),
    "the next id, in an object without properties": ({"id": 1234567890}, {"id": 1234567891}, {"type": "object"}, {}),
    "the next id, as floats": (1234567890.0, 1234567891.0, NUMBER, {}),
    "an id of 17 digits, one more": (12345678901234567, 12345678901234568, NO_SCHEMA, {}),
    "an id of 17 digits and a half": (1234567890123456, 1234567890123456.5, NO_SCHEMA, {}),
    "milliseconds twenty minutes later": (1717171717000, 1717172917000, NO_SCHEMA, {}),
    "a phone number, one more": (4915112345678, 4915112345679, NO_SCHEMA, {}),
    "cents beside a round million": (1000000.00, 1000000.99, NUMBER, {}),
    "another number of cents": (1234567.11, 1234567.12, NUMBER, {}),
    "milliseconds of a point in time": (1717171717.123, 1717171717.124, NUMBER, {}),
    "a tiny number for another": (1e-9, 2e-9, NUMBER, {}),
    "zero for a tiny number": (1e-30, 0, NUMBER, {}),
    "the opposite sign": (9.5, -9.5, NUMBER, {}),
    "a fraction for an integer": (2, 2.0000000000000004, {"type": "integer"}, {}),
    "a whole number beside it, with a large tolerance": (100, 101, NUMBER, {"number_tolerance": 0.05}),
    "another case of an enum's member that is a member too": ("1M", "1m", INTERVALS, {"enums": True}),
    "the same with a space": ("1M", " 1m", INTERVALS, {"enums": True}),
    "another member": ("economy", "Business", CABINS, {"enums": True}),
    "case where only another argument's may differ": ("economy", "Economy", CABINS, {"enums": ["act.y"]}),
    "day and month exchanged, with points": ("2024-06-05", "05.06.2024", DATE, {"dates": True}),
    "day and month exchanged, with slashes": ("2024-06-05", "05/06/2024", DATE, {"dates": True}),
    "a date of seven digits": ("2024-11-05", "2024115", DATE, {"dates": True}),
    "a week's date": ("2024-01-01", "2024-W01-1", DATE, {"dates": True}),
    "a date in Arabic digits": ("2024-06-05", "٢٠٢٤-٠٦-٠٥", DATE, {"dates": True}),  # noqa: RUF001
    "the day before, in words": ("2024-06-05", "June 4th, 2024", DATE, {"dates": True}),
    "a date in a text that is none": ("2024/05/03", "2024-05-03", TEXT, {"dates": True}),
    "a division made a floor division": ("n = a/b", "n = a//b", TEXT, {"paths": True}),
    "an address with one slash": ("https://a/b", "https:/a/b", TEXT, PATHS),
    "a way through a link": ("data", "current/../data", TEXT, PATHS),
    "a path above": ("a/b", "a/../b", TEXT, PATHS),
    "a relative path for an absolute one": ("/etc/a", "etc/a", TEXT, PATHS),
    "a path of another case": ("src/A.py", "src/a.py", TEXT, PATHS),
    "no path": (".", "", TEXT, PATHS),
    "another amount in prose": ("Refund $100 to the customer.", "Refund $900 to the customer.", TEXT, PROSE),
    "another account in prose": ("Send it to account DE12 3456.", "Send it to account DE12 3457.", TEXT, PROSE),
    "another number in words in prose": (
        "Send five items to the customer.",
        "Send four items to the customer.",
        TEXT,
        PROSE,
    ),
    "millions for billions in prose": ("It costs 5 billion at most.", "It costs 5 million at most.", TEXT, PROSE),
    "numbers exchanged in prose": ("Move the flight from 3 to 7.", "Move the flight from 7 to 3.", TEXT, PROSE),
    "an amount more in prose": ("Refund the customer.", "Refund the customer 100.", TEXT, PROSE),
    "a point moved in prose": ("Refund 1.05 at once.", "Refund 10.5 at once.", TEXT, PROSE),
    "few for all in prose": ("All items arrived.", "Few items arrived.", TEXT, PROSE),
    "divorced for married in prose": ("The user is married.", "The user is divorced.", TEXT, PROSE),
    "fire for hire in prose": ("Hire the candidate soon.", "Fire the candidate soon.", TEXT, PROSE),
    "restore for delete in prose": ("Delete the backup file.", "Restore the backup file.", TEXT, PROSE),
    "a replacement for a refund in prose": ("User wants a refund.", "User wants a replacement.", TEXT, PROSE),
    "by plane for by ship in prose": ("Send the parcel by ship.", "Send the parcel by plane.", TEXT, PROSE),
    "never in prose": ("The customer agreed to pay.", "The customer never agreed to pay.", TEXT, PROSE),
    "n't in prose": ("The customer did agree to pay.", "The customer didn't agree to pay.", TEXT, PROSE),
    "without in prose": ("Ship it with insurance.", "Ship it without insurance.", TEXT, PROSE),
    "twice for once in prose": ("Call the customer once.", "Call the customer twice.", TEXT, PROSE),
    "a half for a quarter in prose": ("Pay half of the amount.", "Pay a quarter of the amount.", TEXT, PROSE),
    "the first for the second in prose": ("Cancel the first flight.", "Cancel the second flight.", TEXT, PROSE),
    "another sign in prose": ("Change the sum by -5 euros.", "Change the sum by 5 euros.", TEXT, PROSE),
    "another currency in prose": ("It costs 5 dollars.", "It costs 5 euros.", TEXT, PROSE),
    "another currency's sign in prose": ("It costs $5 each.", "It costs €5 each.", TEXT, PROSE),
    "no percent in prose": ("Prices grew by 5%.", "Prices grew by 5.", TEXT, PROSE),
    "another unit in prose": ("The bag has 5 kg.", "The bag has 5 lb.", TEXT, PROSE),
    "another unit at the number in prose": ("The bag has 5kg.", "The bag has 5mg.", TEXT, PROSE),
    "the afternoon in prose": ("Meet him at 5 am today.", "Meet him at 5 pm today.", TEXT, PROSE),
    "another day in prose": ("Deliver it on Monday.", "Deliver it on Friday.", TEXT, PROSE),
    "another king in prose": ("He means Louis XIV of France.", "He means Louis XVI of France.", TEXT, PROSE),
    "another person in prose": ("The flight of Rob is late.", "The flight of Bob is late.", TEXT, PROSE),
    "persons exchanged in prose": ("Send money from Ann to Bob.", "Send money from Bob to Ann.", TEXT, PROSE),
    "another flag in prose": ("Start it with -v here.", "Start it with -q here.", TEXT, PROSE),
    "another address in prose": ("Write to a@shop.de today.", "Write to b@shop.de today.", TEXT, PROSE),
    "another reference in prose": ("Look at order W123 first.", "Look at order Z123 first.", TEXT, PROSE),
    "hardly in prose": ("Everyone agreed to it.", "Hardly anyone agreed to it.", TEXT, PROSE),
    "only in prose": ("Do this for Ann.", "Do this only for Ann.", TEXT, PROSE),
    "a failure in prose": ("He managed to pay the bill.", "He failed to pay the bill.", TEXT, PROSE),
    "a refusal in prose": ("He accepted the offer.", "He rejected the offer.", TEXT, PROSE),
    "a negation in German": ("Heute wird alles bezahlt.", "Heute wird nicht alles bezahlt.", TEXT, PROSE),
    "the home folder for a file of its name": ("./~", "~", TEXT, PATHS),
    "standard input for a file of its name": ("./-", "-", TEXT, PATHS),
    "after for before in prose": ("He wants it before noon.", "He wants it after noon.", TEXT, PROSE),
    "decrease for increase in prose": ("Increase the limit of it.", "Decrease the limit of it.", TEXT, PROSE),
    "the other way round in prose": ("move it from left to right", "move it from right to left", TEXT, PROSE),
    "another day in small letters in prose": ("ship it on monday please", "ship it on friday please", TEXT, PROSE),
    "off for on in prose": ("Turn the alarm on please.", "Turn the alarm off please.", TEXT, PROSE),
    "opened for closed in prose": ("The account was opened.", "The account was closed.", TEXT, PROSE),
    "tomorrow for today in prose": ("Call him back today.", "Call him back tomorrow.", TEXT, PROSE),
    "un- in prose": ("He is happy with it.", "He is unhappy with it.", TEXT, PROSE),
    "non- in prose": ("The fare is refundable.", "The fare is non-refundable.", TEXT, PROSE),
    "all for some in prose": ("Cancel all of the bags.", "Cancel some of the bags.", TEXT, PROSE),
    "the old and the new exchanged in prose": (
        "Send the old bag to the new home.",
        "Send the new bag to the old home.",
        TEXT,
        PROSE,
    ),
    "il- in prose": ("It is legal there.", "It is illegal there.", TEXT, PROSE),
    "de- in prose": ("Activate the card now.", "Deactivate the card now.", TEXT, PROSE),
    "removed for added in prose": ("Add the bag to it.", "Remove the bag from it.", TEXT, PROSE),
    "the way back for the way there in prose": (
        "Cancel the outbound flight.",
        "Cancel the inbound flight.",
        TEXT,
        PROSE,
    ),
    "sold for bought in prose": ("He bought it here.", "He sold it here.", TEXT, PROSE),
    "smaller for larger in prose": ("Take the larger bag.", "Take the smaller bag.", TEXT, PROSE),
    "the dearest for the cheapest in prose": ("Take the cheapest one.", "Take the most expensive one.", TEXT, PROSE),
    "another seat in prose": ("Take the window seat.", "Take the aisle seat.", TEXT, PROSE),
    "another meal in prose": ("He wants a vegan lunch.", "He wants a vegan dinner.", TEXT, PROSE),
    "another colour in prose": ("The blue shirt fits.", "The black shirt fits.", TEXT, PROSE),
    "months for days in prose": ("It lasts a few days.", "It lasts a few months.", TEXT, PROSE),
    "the sign of kelvin for a member": ("k", "\u212a", {"type": "string", "enum": ["k", "m"]}, {"enums": True}),
    "items of an inner list in any order": ([[1, 2]], [[2, 1]], {"type": "array"}, {"unordered": ["act.x"]}),
    "items of a list in an object in any order": (
        [{"a": [1, 2]}],
        [{"a": [2, 1]}],
        {"type": "array"},
        {"unordered": ["act.x"]},
    ),
    "one item for another without an order": ([1, 1, 2], [1, 2, 2], {"type": "array"}, {"unordered": ["act.x"]}),
    "true for 1 without an order": ([1, True], [1, 1], {"type": "array"}, {"unordered": ["act.x"]}),
    "a home folder for its path": ("/home/u/a", "~/a", TEXT, PATHS),
    "a variable in a path": ("/home/u/a", "$HOME/a", TEXT, PATHS),
    "a backslash in a path": ("a/b", "a\\b", TEXT, PATHS),
    "a space behind a path": ("a/b", "a/b ", TEXT, PATHS),
    "another zone": (
        "2024-03-01T10:00:00Z",
        "2024-03-01T10:00:00+01:00",
        {"type": "string", "format": "date-time"},
        {"dates": True},
    ),
    "no zone": (
        "2024-03-01T10:00:00Z",
        "2024-03-01T10:00:00",
        {"type": "string", "format": "date-time"},
        {"dates": True},
    ),
    "a time of the day for a day": ("2024-03-01", "2024-03-01T10:00:00", DATE, {"dates": True}),
    "a day that is not": ("2024-03-01", "2024-02-30", DATE, {"dates": True}),
    "nothing for prose": ("Ship it.", "  ", TEXT, PROSE),
    "null for a number that may be null": (5, None, OR_NULL, {}),
    "other items in any order": ([1, 2, 3], [3, 2, 2], {"type": "array", "uniqueItems": True}, {}),
    "an item beside the ignored argument": ({"a": 1, "b": 2}, {"a": 2, "b": 2}, NO_SCHEMA, {"ignored": ["act.x.b"]}),
}
RIGHT: dict[str, Case] = {
    "a sum of floats": (0.3, 0.30000000000000004, NUMBER, {}),
    "a float beside a whole number": (3, 3.0000000000000004, NUMBER, {}),
    "a whole number written as a float": (10**15, 1e15, NO_SCHEMA, {}),
    "a number within a tolerance that the row allows": (9.5, 9.51, NUMBER, {"number_tolerance": 0.01}),
    "a member in capitals": ("1h", "1H", INTERVALS, {"enums": ["act.x"]}),
    "a date in words": ("2024-06-03", "June 3rd, 2024", DATE, {"dates": True}),
    "a date whose day cannot be a month": ("2024-06-25", "25.06.2024", DATE, {"dates": True}),
    "a date of an argument that the row names": ("2024-06-03", "2024/6/3", TEXT, {"dates": ["act.x"]}),
    "the same instant in another zone": (
        "2024-06-03T10:00:00Z",
        "2024-06-03T12:00:00+02:00",
        {"type": "string", "format": "date-time"},
        {"dates": True},
    ),
    "another spelling of a path": ("src/a.py", "./src//a.py", TEXT, PATHS),
    "a path whose schema says so": ("src/a.py", "src/./a.py", {"type": "string", "format": "path"}, {"paths": True}),
    "a folder with a slash": ("/repo", "/repo/", TEXT, PATHS),
    "prose with a number in digits": ("Refund the two items now.", "Refund the 2 items now.", TEXT, PROSE),
    "prose with another word that negates": ("He does not want it.", "He doesn't want it.", TEXT, PROSE),
    "prose with other endings": ("Increase the number of bags.", "Increasing the number of bags.", TEXT, PROSE),
    "prose with a pair of contraries twice": (
        "Close the old account, open a new one.",
        "Close old account, open new.",
        TEXT,
        PROSE,
    ),
    "prose with words of one group left out": ("Ship it today before noon.", "Ship it before noon.", TEXT, PROSE),
    "prose in other capitals": ("URGENT: refund it now", "Urgent: refund it now", TEXT, PROSE),
    "a member with spaces": ("Red", " red\n", {"type": "string", "enum": ["Red", "blue"]}, {"enums": True}),
    "a member beyond ASCII": (
        "\u00c9t\u00e9",
        "\u00e9t\u00e9",
        {"type": "string", "enum": ["\u00c9t\u00e9", "ete"]},
        {"enums": True},
    ),
    "objects without an order": (
        [{"a": 1}, {"b": 2}],
        [{"b": 2}, {"a": 1}],
        {"type": "array"},
        {"unordered": ["act.x"]},
    ),
    "a date without zeros": ("2024-03-01", "2024/3/1", DATE, {"dates": True}),
    "a date in capitals": ("2024-03-01", "MARCH 1, 2024", DATE, {"dates": True}),
    "prose without a name": ("User Ann needs her refund.", "The user needs her refund.", TEXT, PROSE),
    "prose with other capitals at its begin": (
        "Needs help to pay.",
        "User needs help to pay.",
        TEXT,
        PROSE,
    ),
    "prose with other small words": ("Refund 100 to the customer.", "Refund 100 to this customer!", TEXT, PROSE),
    "an ignored key": ({"a": 1, "b": 2}, {"a": 1, "b": 3}, NO_SCHEMA, {"ignored": ["act.x.b"]}),
}


def act(*values: Json) -> Message:
    calls = tuple(ToolCall(name="act", arguments={"x": value}) for value in values)
    return Message(role=Role.ASSISTANT, tool_calls=calls)


def turn_of(expert: Message, schema: Json) -> Turn:
    parameters: Json = {"type": "object", "properties": {"x": schema, "y": {}}, "$defs": {"Id": {"type": "integer"}}}
    if schema is None:
        return make_turn(expert=expert, tools=())
    return make_turn(
        expert=expert, tools=({"type": "function", "function": {"name": "act", "parameters": parameters}},)
    )


async def judge(case: Case) -> Verdict:
    expert, actual, schema, options = case
    return await get_verifier("tool_call", options)(act(actual), turn_of(act(expert), schema))


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_value_that_is_not_the_experts_is_refused(attack: str) -> None:
    assert (await judge(ATTACKS[attack])).score == 0.0


@pytest.mark.parametrize("attack", ATTACKS)
async def test_its_expert_is_accepted(attack: str) -> None:
    expert, _, schema, options = ATTACKS[attack]

    assert (await judge((expert, expert, schema, options))).score == 1.0


TELLING = ["5", "7.5", "-5", "$5", "5%", "8", "two", "third", "half", "Ann", "May", "XIV", "a@b.de", "-v", "A12", "not"]


@given(st.sampled_from(TELLING), st.sampled_from(TELLING), st.sampled_from(["It is {} at once.", "We say {} here."]))
async def test_no_telling_word_of_prose_may_give_way_to_another(word: str, other: str, sentence: str) -> None:
    case: Case = (sentence.format(word), sentence.format(other), TEXT, PROSE)

    assert (await judge(case)).score == (word == other)


@pytest.mark.parametrize("name", RIGHT)
async def test_the_same_value_in_another_form_is_paid(name: str) -> None:
    verdict = await judge(RIGHT[name])

    assert verdict.score == 1.0, verdict


def shown(value: Json) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


async def test_the_page_shows_them() -> None:
    rows = []
    for attack, case in ATTACKS.items():
        rows.append(f"| {attack} | {shown(case[0])} | {shown(case[1])} | `{(await judge(case)).reason}` |")

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], "\n".join(rows)
