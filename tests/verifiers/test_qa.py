"""verifiers.qa and extract_answer: scores computed by hand, and attacks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.factories import make_turn
from verl_pivot.types import Json, Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.extraction import AnswerPlace, extract_answer
from verl_pivot.verifiers.registry import get_verifier


def say(text: str, *calls: ToolCall) -> Message:
    return Message(role=Role.ASSISTANT, content=text, tool_calls=calls)


async def judge(text: str, expert: str = "<answer>Paris</answer>", **options: Json) -> Verdict:
    return await get_verifier("qa", options)(say(text), make_turn(expert=say(expert)))


# (answer, accepted, normalisation, exact, f1)
ANSWERS: list[tuple[str, str, str, float, float]] = [
    ("Paris", "Paris", "search_r1", 1.0, 1.0),
    ("  PARIS. ", "paris", "search_r1", 1.0, 1.0),
    ("The Paris", "a paris", "search_r1", 1.0, 1.0),
    ("the Paris", "Paris", "l0", 0.0, 2 / 3),
    ("U.S.A.", "USA", "search_r1", 1.0, 1.0),
    ("U.S.A.", "usa", "l0", 1.0, 1.0),
    ("well-known", "wellknown", "search_r1", 1.0, 1.0),
    ("Paris, France", "Paris", "search_r1", 0.0, 2 / 3),
    ("Barack Obama", "Obama Barack", "search_r1", 0.0, 1.0),
    ("Lyon", "Paris", "search_r1", 0.0, 0.0),
    ("1,000", "1000", "search_r1", 1.0, 1.0),
    ("Zürich", "Zurich", "search_r1", 0.0, 0.0),
    ("Zürich", "Zrich", "l0", 0.0, 0.0),
    ("50 %.", "50%", "search_r1", 1.0, 1.0),
    ("$5", "5", "search_r1", 1.0, 1.0),
    ("-1,000.5", "-1000.5", "search_r1", 1.0, 1.0),
    ("**The C++ language**", "C++ Language", "search_r1", 1.0, 1.0),
    ("\\text{Paris}", "Paris", "search_r1", 1.0, 1.0),
    ("O\u2019Neill\u2019s caf\u0065\u0301", "O'Neill's caf\u00e9", "search_r1", 1.0, 1.0),
    ("1990\u20131995", "1990-1995", "search_r1", 1.0, 1.0),
    ("vitamin a", "Vitamin A", "search_r1", 1.0, 1.0),
    ("hepatitis a virus", "Hepatitis A virus", "search_r1", 1.0, 0.8),
    ("the hobbit: a novel", "The Hobbit: A Novel", "search_r1", 1.0, 1.0),
    ("covid 19", "COVID-19", "search_r1", 0.0, 0.0),
    ("covid19", "COVID-19", "search_r1", 1.0, 1.0),
    ("ak47", "AK-47", "search_r1", 1.0, 1.0),
    ("No5", "No.5", "search_r1", 1.0, 1.0),
    ("\u22645", "<=5", "search_r1", 1.0, 1.0),
    ("paris paris", "paris", "search_r1", 0.0, 2 / 3),
]


@pytest.mark.parametrize(("answer", "accepted", "normalisation", "exact", "f1"), ANSWERS)
async def test_scores_are_those_computed_by_hand(
    answer: str, accepted: str, normalisation: str, exact: float, f1: float
) -> None:
    text, expert = f"I think so.<answer>{answer}</answer>", f"<answer>{accepted}</answer>"

    assert (await judge(text, expert, normalisation=normalisation)).score == exact
    assert (await judge(text, expert, normalisation=normalisation, metric="f1")).score == pytest.approx(f1)


async def test_one_answer_given_twice_in_other_case_is_one_answer() -> None:
    assert (await judge("<answer>Paris</answer> I mean <answer>the paris.</answer>")).score == 1.0


async def test_any_of_the_listed_answers_is_accepted() -> None:
    for answer in ("NYC", "new york city", "New York"):
        assert (await judge(f"<answer>{answer}</answer>", answers=["New York", "New York City", "NYC"])).score == 1.0


async def test_contains_needs_the_words_in_a_row_in_a_short_answer() -> None:
    expert = "<answer>New York</answer>"

    assert (await judge("<answer>It is New York, USA</answer>", expert, metric="contains")).score == 1.0
    assert (await judge("<answer>York is new</answer>", expert, metric="contains")).score == 0.0
    assert (await judge("<answer>Newer Yorkshire New Yorker</answer>", expert, metric="contains")).score == 0.0
    long = " ".join(f"city{number}" for number in range(30))
    assert (await judge(f"<answer>{long} New York</answer>", expert, metric="contains")).score == 0.0


@pytest.mark.parametrize(
    "expert",
    [
        "",
        "no tags",
        "<answer></answer>",
        "<answer>東京</answer>",
        "<answer>...</answer>",
        "<answer>東京 2020</answer>",
        "<answer>Łódź</answer>",
        "<answer>Paris</answer><answer>Lyon</answer>",
    ],
)
async def test_an_accepted_answer_that_loses_letters_or_all_words_leaves_the_row_undecided(expert: str) -> None:
    verdict = await judge("<answer>東京</answer>", expert, normalisation="l0")

    assert (verdict.score, verdict.reason) == (None, "broken_gold")


async def test_a_call_is_no_answer() -> None:
    action = say("<answer>Paris</answer>", ToolCall(name="search", arguments={}))

    verdict = await get_verifier("qa")(action, make_turn(expert=say("<answer>Paris</answer>")))

    assert (verdict.score, verdict.reason) == (0.0, "call_instead_of_message")


@pytest.mark.parametrize(
    ("text", "place", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}.", "boxed", r"\frac{1}{2}"),
        (r"\boxed{1} and again \boxed{1}", "boxed", "1"),
        (r"\boxed{1} or \boxed{2}", "boxed", None),
        (r"\boxed{1", "boxed", None),
        (r"\boxed{}", "boxed", None),
        ("<answer>a</answer><answer> a </answer>", "answer_tag", "a"),
        (" 42 ", "all", "42"),
        ("", "all", None),
    ],
)
def test_the_answer_is_extracted_from_its_place(text: str, place: AnswerPlace, answer: str | None) -> None:
    found = extract_answer(text, place)

    assert (None if isinstance(found, Verdict) else found) == answer


@given(st.text(), st.text(), st.sampled_from(["exact", "f1", "contains"]), st.sampled_from(["search_r1", "l0"]))
async def test_no_text_raises_and_the_expert_is_accepted(
    text: str, answer: str, metric: str, normalisation: str
) -> None:
    verdict = await judge(text, answer, metric=metric, normalisation=normalisation, place="all")
    expert = await judge(answer, answer, metric=metric, normalisation=normalisation, place="all", max_words=1000)

    assert verdict.score is None or 0.0 <= verdict.score <= 1.0
    assert expert.score in (None, 1.0)
