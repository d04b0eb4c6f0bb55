"""Answers of a policy trained as a judge that try to be paid for a wrong score; docs/verifier_attacks.md lists them."""

import json

import pytest

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from verl_pivot.errors import ConfigError
from verl_pivot.types import JsonObject, Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.registry import get_verifier

PAGE = ROOT / "docs" / "verifier_attacks.md"
TURN = "I look it up. <search>who painted the Night Watch</search>"
NAMES = ("information", "query")
LISTED = [{"name": name, "text": "It is right."} for name in NAMES]


def judged(*scores: object, maximum: object = 10, quotation: str = "I look it up.", **more: object) -> str:
    """Answer in the form `principles`, with one of the scores for each principle."""
    grades: list[JsonObject] = [
        {"name": name, "quotation": quotation, "score": score, "maximum": maximum}  # type: ignore[dict-item]
        for name, score in zip((*NAMES, "own", "own too"), scores, strict=False)
    ]
    return json.dumps({"principles": grades, **more})


PRINCIPLES_ATTACKS: dict[str, tuple[str, str]] = {
    "gives another score": (judged(2, 3), "wrong_value"),
    "gives a score at the edge": (judged(7, 6), "wrong_value"),
    "gives the middle always": (judged(5, 5), "wrong_value"),
    "leaves a principle out": (judged(8), "wrong_form"),
    "names a principle twice": (
        judged(8, 8).replace('"query"', '"information"'), "wrong_form"),
    "adds more principles than allowed": (judged(8, 8, 8, 8), "wrong_form"),
    "quotes what the turn does not hold": (judged(8, 8, quotation="I know it."), "wrong_form"),
    "quotes nothing": (judged(8, 8, quotation=" "), "wrong_form"),
    "gives more than the maximum": (judged(18, 8, maximum=10), "wrong_form"),
    "gives a maximum of 0": (judged(0, 0, maximum=0), "wrong_form"),
    "gives a maximum of a million": (judged(800_000, 800_000, maximum=1_000_000), "wrong_form"),
    "gives a negative score": (judged(-1, 8), "wrong_form"),
    "gives no number": (judged("8", "8"), "wrong_form"),
    "gives NaN": (judged(8, 8).replace("8", "NaN"), "wrong_form"),
    "gives infinity": (judged(8, 8).replace("8", "Infinity"), "wrong_form"),
    "gives a score twice": (judged(8, 8).replace('"score": 8', '"score": 1, "score": 8'), "wrong_form"),
    "adds a total": (judged(8, 8, score=0.8), "wrong_form"),
    "answers with two objects": (judged(1, 1) + judged(8, 8), "wrong_form"),
    "answers in the other form": ("<final_score>4,5</final_score>", "wrong_form"),
    "says the score in words": ("The score is 0.8.", "wrong_form"),
    "says nothing": ("", "wrong_form"),
    "nests brackets deeply": ("[" * 50_000, "wrong_form"),
    "writes a book": (judged(8, 8) + " " * 200_000, "wrong_form"),
}  # fmt: skip
RELEASED_ATTACKS: dict[str, tuple[str, str]] = {
    "gives another score behind the right one": (
        "<final_score>4,5</final_score> or <final_score>1,5</final_score>", "wrong_value"),
    "gives a maximum of 0 in the tag": ("<final_score>0,0</final_score>", "wrong_form"),
    "gives more than the maximum in the tag": ("<final_score>9,5</final_score>", "wrong_form"),
    "gives a negative score in the tag": ("<final_score>-4,-5</final_score>", "wrong_form"),
    "gives a fraction in the tag": ("<final_score>0.8,1</final_score>", "wrong_form"),
    "gives three numbers in the tag": ("<final_score>4,5,5</final_score>", "wrong_form"),
    "leaves the tag open": ("<final_score>4,5", "wrong_form"),
    "opens a second tag behind the right one": ("<final_score>4,5</final_score><final_score>", "wrong_form"),
    "gives digits without end": (f"<final_score>4{'0' * 5000},5{'0' * 5000}</final_score>", "wrong_form"),
    "gives digits of another script": ("<final_score>\u0664,\u0665</final_score>", "wrong_form"),
    "gives no tag": ("4,5", "wrong_form"),
}  # fmt: skip
ATTACKS = PRINCIPLES_ATTACKS | RELEASED_ATTACKS
PAID = [
    ("principles", judged(8, 8)),
    ("principles", judged(7, 7)),
    ("principles", judged(9, 9)),
    ("principles", judged(8, 8, 8)),
    ("principles", judged(4, 4, maximum=5, quotation="who painted  the Night Watch")),
    ("principles", f"```json\n{judged(8, 8)}\n```"),
    ("released", "Analysis: well done.\nScores: <final_score>4,5</final_score>"),
    ("released", "The turn says <final_score>1,1</final_score>.\n<final_score> 12 , 15 </final_score>"),
]


async def judge(form: str, content: str, **options: object) -> Verdict:
    """Verdict on an answer about a turn whose label is 0.8."""
    given = {"turn": TURN, "form": form, "principles": LISTED, "max_added": 1, "label": 0.8, **options}
    expert = judged(8, 8) if form == "principles" else "<final_score>4,5</final_score>"
    turn = make_turn(expert=Message(role=Role.ASSISTANT, content=expert))
    return await get_verifier("process_score", given)(Message(role=Role.ASSISTANT, content=content), turn)  # type: ignore[arg-type]  # JSON


OTHER = "I guess that it was Ann."


def ordered(*scores: object, **parts: object) -> str:
    """An answer about a pair, with these scores for every principle of the first and of the second turn."""
    texts = [judged(score, score, quotation=text[:9]) for score, text in zip(scores, (TURN, OTHER), strict=False)]
    both = dict(zip(("first", "second"), map(json.loads, texts), strict=False))
    return json.dumps({**both, **parts})


def tags(*scores: str) -> str:
    return "\n".join(f"Analysis: so.\nScores: <final_score>{score}</final_score>" for score in scores)


PAIR_ATTACKS: dict[str, tuple[str, str]] = {
    "puts the worse turn first": (ordered(3, 8), "wrong_value"),
    "gives both turns the same": (ordered(8, 8), "wrong_value"),
    "gives both turns 0": (ordered(0, 0), "wrong_value"),
    "leaves the worse turn out": (ordered(8), "wrong_form"),
    "answers about one turn alone": (judged(8, 8), "wrong_form"),
    "says which turn is better": ('{"better": "first"}', "wrong_form"),
    "adds which turn is better": (ordered(8, 3, better="first"), "wrong_form"),
    "gives the second turn twice": (ordered(8, 9)[:-1] + ordered(8, 3)[1:], "wrong_form"),
    "quotes the better turn for both": (
        json.dumps(dict.fromkeys(("first", "second"), json.loads(judged(8, 3)))), "wrong_form"),
    "gives the worse turn less than nothing": (ordered(8, -1), "wrong_form"),
    "gives a list of two": (f"[{judged(8, 8)}, {judged(3, 3)}]", "wrong_form"),
}  # fmt: skip
RELEASED_PAIR_ATTACKS: dict[str, tuple[str, str]] = {
    "puts the worse turn first by tags": (tags("1,5", "4,5"), "wrong_value"),
    "orders by the maximum": (tags("4,9", "4,5"), "wrong_value"),
    "gives one tag": (tags("4,5"), "wrong_form"),
    "gives a third tag that turns the order": (tags("4,5", "1,5", "4,5"), "wrong_value"),
    "leaves the second tag open": (tags("4,5") + "<final_score>1,5", "wrong_form"),
}


async def order(form: str, content: str, label: float = 0.8, other: float = 0.2) -> Verdict:
    """Verdict on an answer about a pair whose first turn is the better one."""
    options = {"turn": TURN, "form": form, "principles": LISTED, "label": label}
    expert = ordered(8, 2) if form == "principles" else tags("4,5", "1,5")
    turn = make_turn(expert=Message(role=Role.ASSISTANT, content=expert))
    verifier = get_verifier("process_score", {**options, "other": {"turn": OTHER, "label": other}})  # type: ignore[dict-item]  # JSON
    return await verifier(Message(role=Role.ASSISTANT, content=content), turn)


@pytest.mark.parametrize("attack", PAIR_ATTACKS | RELEASED_PAIR_ATTACKS)
async def test_no_answer_is_paid_that_does_not_put_two_turns_in_order(attack: str) -> None:
    content, reason = (PAIR_ATTACKS | RELEASED_PAIR_ATTACKS)[attack]

    verdict = await order("principles" if attack in PAIR_ATTACKS else "released", content)

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("principles", ordered(8, 2)),
        ("principles", ordered(5, 4)),
        ("principles", f"```json\n{ordered(10, 0)}\n```"),
        ("released", tags("4,5", "1,5")),
        ("released", tags("1,1", "9,10")),
    ],
)
async def test_valid_scores_in_the_order_of_the_labels_are_paid_however_near(form: str, content: str) -> None:
    verdict = await order(form, content)

    assert (verdict.score, verdict.reason) == (1.0, "accepted"), verdict.detail


async def test_a_pair_whose_expert_has_another_order_is_undecided() -> None:
    verdict = await order("principles", ordered(8, 2), label=0.2, other=0.8)

    assert (verdict.score, verdict.reason) == (None, "broken_gold")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": 0.5}, "must be given and differ"),
        ({}, "must be given and differ"),
        ({"label": 0.8, "tolerance": 0.1}, "tolerance does nothing"),
    ],
)
def test_options_of_a_pair_that_make_no_sense_are_refused(options: JsonObject, message: str) -> None:
    other: JsonObject = {"turn": OTHER, "label": 0.5}
    with pytest.raises(ConfigError, match=message):
        get_verifier("process_score", {"turn": TURN, "form": "released", "other": other, **options})


@pytest.mark.parametrize("attack", ATTACKS)
async def test_no_answer_is_paid_that_has_not_the_labels_score(attack: str) -> None:
    content, reason = ATTACKS[attack]

    verdict = await judge("principles" if attack in PRINCIPLES_ATTACKS else "released", content)

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize(("form", "content"), PAID)
async def test_a_valid_answer_within_the_tolerance_is_paid(form: str, content: str) -> None:
    verdict = await judge(form, content)

    assert (verdict.score, verdict.reason) == (1.0, "accepted"), verdict.detail


async def test_the_tolerance_is_the_rows() -> None:
    assert (await judge("principles", judged(6, 6), tolerance=0.2)).score == 1.0
    assert (await judge("principles", judged(6, 7), tolerance=0.1)).score == 0.0
    assert (await judge("principles", judged(8, 8), tolerance=0.0)).score == 1.0


async def test_a_call_is_no_answer() -> None:
    turn = make_turn(expert=Message(role=Role.ASSISTANT, content=judged(8, 8)))
    verifier = get_verifier("process_score", {"turn": TURN, "principles": LISTED})  # type: ignore[dict-item]  # JSON
    call = Message(role=Role.ASSISTANT, content="", tool_calls=(ToolCall(name="score", arguments={"score": 0.8}),))

    assert (await verifier(call, turn)).reason == "call_instead_of_message"


async def test_without_a_label_the_experts_score_is_the_label() -> None:
    assert (await judge("principles", judged(8, 8), label=None)).score == 1.0
    assert (await judge("principles", judged(3, 3), label=None)).score == 0.0


async def test_a_row_whose_expert_would_not_be_paid_is_undecided() -> None:
    verdict = await judge("principles", judged(2, 2), label=0.2)
    without_score = await judge("principles", judged(8, 8), turn="Another turn.")

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
    assert (without_score.score, without_score.reason) == (None, "broken_gold")


def test_the_page_has_the_tables() -> None:
    for attacks in (ATTACKS, PAIR_ATTACKS | RELEASED_PAIR_ATTACKS):
        rows = [f"| {attack} | `{reason}` |" for attack, (_, reason) in attacks.items()]

        assert "\n".join(rows) in PAGE.read_text()
