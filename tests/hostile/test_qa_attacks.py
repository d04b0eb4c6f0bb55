"""Short answers that try to pass for the expert's; docs/verifier_attacks.md lists them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from verl_pivot.types import Json, Message, Role, Verdict
from verl_pivot.verifiers.registry import get_verifier

PAGE = ROOT / "docs" / "verifier_attacks.md"


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


def answer(text: str) -> str:
    return f"<answer>{text}</answer>"


async def judge(text: str, expert: str, **options: Json) -> Verdict:
    return await get_verifier("qa", options)(say(text), make_turn(expert=say(answer(expert))))


# {what the answer does: (the expert's answer, the text, reason)}
ATTACKS: dict[str, tuple[str, str, str]] = {
    "no tags": ("Paris", "Paris", "no_answer"),
    "an open tag": ("Paris", "<answer>Paris", "no_answer"),
    "an empty answer": ("Paris", answer(" "), "no_answer"),
    "two answers": ("Paris", "<answer>Paris</answer> or <answer>London</answer>", "several_answers"),
    "an answer and an empty one": ("Paris", answer("Paris") + answer(""), "several_answers"),
    "all answers in one": ("Paris", answer("Paris London Rome Berlin"), "wrong_value"),
    "only articles": ("Paris", answer("the a an"), "wrong_value"),
    "only punctuation": ("Paris", answer("..."), "wrong_value"),
    "look-alikes": ("Paris", answer("Раris"), "wrong_value"),  # noqa: RUF001
    "a zero-width space": ("Paris", answer("Par\u200bis"), "wrong_value"),
    "a negation": ("Paris", answer("not Paris"), "wrong_value"),
    "an order": ("Paris", answer("Whatever the accepted answer is."), "wrong_value"),
    "a megabyte": ("Paris", answer("Paris " * 200_000), "wrong_value"),
    "nested tags": ("Paris", "<answer><answer>Paris</answer></answer>", "wrong_value"),
    "nothing": ("Paris", "", "no_answer"),
    "5 for -5": ("-5", answer("5"), "wrong_value"),
    "-5 for 5": ("5", answer("-5"), "wrong_value"),
    "a minus of another letter": ("5", answer("\u22125"), "wrong_value"),
    "314 for 3.14": ("3.14", answer("314"), "wrong_value"),
    "31.4 for 3.14": ("3.14", answer("31.4"), "wrong_value"),
    ".5 for 5": ("5", answer(".5"), "wrong_value"),
    "12 for 1/2": ("1/2", answer("12"), "wrong_value"),
    "1,5 for 15": ("15", answer("1,5"), "wrong_value"),
    "10,00 for 1000": ("1000", answer("10,00"), "wrong_value"),
    "5 for 5%": ("5%", answer("5"), "wrong_value"),
    "5 % for 5": ("5", answer("5 %"), "wrong_value"),
    ">5 for <5": ("<5", answer(">5"), "wrong_value"),
    "5 for <5": ("<5", answer("5"), "wrong_value"),
    "~5 for 5": ("5", answer("~5"), "wrong_value"),
    "1e5 for 1e-5": ("1e-5", answer("1e5"), "wrong_value"),
    "x1 for x-1": ("x-1", answer("x1"), "wrong_value"),
    "a2 for a/2": ("a/2", answer("a2"), "wrong_value"),
    "19901995 for 1990-1995": ("1990-1995", answer("19901995"), "wrong_value"),
    "345 for 3:45": ("3:45", answer("345"), "wrong_value"),
    "510 for 5'10": ("5'10", answer("510"), "wrong_value"),
    "5 inches for 5": ("5", answer('5"'), "wrong_value"),
    "5 for 5 inches": ("about 5\u2033.", answer("about 5"), "wrong_value"),
    "5 feet for 5": ("5", answer("5'"), "wrong_value"),
    "5 feet for 5 inches": ('5"', answer("5'"), "wrong_value"),
    "23 for 2^3": ("2^3", answer("23"), "wrong_value"),
    "5! for 5": ("5", answer("5!"), "wrong_value"),
    "C for C++": ("C++", answer("C"), "wrong_value"),
    "C# for C": ("C", answer("C#"), "wrong_value"),
    "A for A-": ("A-", answer("A"), "wrong_value"),
    "A+ for A-": ("A-", answer("A+"), "wrong_value"),
    "Vitamin for Vitamin A": ("Vitamin A", answer("Vitamin"), "wrong_value"),
    "Vitamin deficiency for Vitamin A deficiency": (
        "Vitamin A deficiency",
        answer("Vitamin deficiency"),
        "wrong_value",
    ),
    "euros for no currency": ("5", answer("€5"), "wrong_value"),
    "an open interval for a closed one": ("[0, 1]", answer("(0, 1)"), "wrong_value"),
    "the other end closed": ("[0, 1)", answer("(0, 1]"), "wrong_value"),
    "a pair for a set": ("{1, 2}", answer("(1, 2)"), "wrong_value"),
    "pi-2 for pi/2": ("pi/2", answer("pi-2"), "wrong_value"),
    "pi2 for pi/2": ("pi/2", answer("pi2"), "wrong_value"),
    "pi2 for pi-2": ("pi-2", answer("pi2"), "wrong_value"),
    "km2 for km/2": ("km/2", answer("km2"), "wrong_value"),
    "USD500 for USD-500": ("USD-500", answer("USD500"), "wrong_value"),
    "log5 for log.5": ("log.5", answer("log5"), "wrong_value"),
    "sin1 for sin-1": ("sin-1", answer("sin1"), "wrong_value"),
    "at most for at least": ("\u22655", answer("\u22645"), "wrong_value"),
    "H2O for H2O+": ("H2O+", answer("H2O"), "wrong_value"),
}
L0_ATTACKS: dict[str, tuple[str, str, str]] = {
    "a letter with an accent that the normalisation drops": ("Zrich", answer("Zürich"), "wrong_value"),
    "other letters behind the right ones": ("Paris", answer("Paris 東京"), "wrong_value"),
    "a sign": ("5", answer("-5"), "wrong_value"),
    "a point": ("31", answer("3.1"), "wrong_value"),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_is_refused(attack: str) -> None:
    expert, text, reason = ATTACKS[attack]

    verdict = await judge(text, expert)

    assert (verdict.score, verdict.reason) == (0.0, reason)
    assert len(verdict.detail) <= 200
    assert (await judge(answer(expert), expert)).score == 1.0


@pytest.mark.parametrize("attack", L0_ATTACKS)
async def test_an_attack_on_the_other_normalisation_is_refused(attack: str) -> None:
    expert, text, reason = L0_ATTACKS[attack]

    verdict = await judge(text, expert, normalisation="l0")

    assert (verdict.score, verdict.reason) == (0.0, reason)


numbers = st.integers(-(10**6), 10**6).map(str) | st.decimals(-1000, 1000, places=2).map(str)
marks = st.sampled_from(["", "%", "/2", ":30", "+", "°", "^2", "e3"])


@given(numbers, marks, numbers, marks, st.sampled_from(["search_r1", "l0"]))
async def test_two_numbers_pass_for_each_other_only_if_they_are_written_alike(
    one: str, mark: str, other: str, other_mark: str, normalisation: str
) -> None:
    text, expert = f"{one}{mark}", f"{other}{other_mark}"

    score = (await judge(answer(text), expert, normalisation=normalisation)).score

    assert score == float(text == expert) or score is None


def test_the_page_shows_them() -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, _, reason) in ATTACKS.items()]

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], "\n".join(rows)
