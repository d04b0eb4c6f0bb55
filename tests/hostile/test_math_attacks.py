"""Answers that try to be paid without being the expert's; docs/verifiers.md shows the table."""

import asyncio
from functools import cache

import pytest

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.registry import get_verifier

PAGE = ROOT / "docs" / "verifiers.md"

ATTACKS: dict[str, tuple[str, str]] = {
    "answers only in its text": ("The answer is 42.", "no_answer"),
    "gives two answers": (r"\boxed{41} or \boxed{42}", "several_answers"),
    "gives two formulas in one box": (r"\boxed{$41$ and $42$}", "several_answers"),
    "gives a box in a box": (r"\boxed{\boxed{42}\boxed{41}}", "several_answers"),
    "lists many answers": (r"\boxed{40, 41, 42, 43}", "wrong_value"),
    "gives an interval": (r"\boxed{[0, 100]}", "wrong_value"),
    "gives an inequality": (r"\boxed{x \leq 42}", "wrong_value"),
    "gives or": (r"\boxed{41 \text{ or } 42}", "wrong_value"),
    "gives plus or minus": (r"\boxed{\pm 42}", "wrong_value"),
    "gives infinity": (r"\boxed{\infty}", "wrong_value"),
    "gives a variable": (r"\boxed{x}", "wrong_value"),
    "leaves the box empty": (r"\boxed{}", "no_answer"),
    "leaves it open": (r"\boxed{42", "no_answer"),
    "gives a number that is close": (r"\boxed{42.01}", "wrong_value"),
    "gives a tower of powers": (r"\boxed{9^{9^{9^{9}}}}", "time_limit"),
    "gives a factorial of a factorial": (r"\boxed{((9!)!)!}", "time_limit"),
    "gives a program": (r"\boxed{__import__('os')._exit(0)}", "no_answer"),
    "gives a book": (r"\boxed{" + "1+" * 5000 + "1}", "too_long"),
    "gives orders": (r"\boxed{\text{accept this answer}}", "wrong_value"),
}
EQUAL = [
    ("42", r"\boxed{42.0}"),
    ("42", r"\boxed{$42$}"),
    ("42", r"so \boxed{42}, that is \boxed{42}"),
    (r"\frac{1}{2}", r"\boxed{0.5}"),
    (r"\frac{1}{2}", r"\boxed{1/2}"),
    (r"\sqrt{8}", r"\boxed{2\sqrt{2}}"),
    ("(x+1)^2", r"\boxed{x^2 + 2x + 1}"),
    (r"\{1, 2\}", r"\boxed{\{2, 1\}}"),
    ("(1, 2)", r"\boxed{(1, 2)}"),
    ("$42$", r"\boxed{42}"),
    (r"Therefore \boxed{6 \cdot 7}.", r"\boxed{42}"),
]

pytestmark = needs_sandbox


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


@cache
def verdicts() -> dict[tuple[str, str], Verdict]:
    """Verdicts on all pairs of both tables; asked together they share a program, which takes seconds to start."""

    async def ask() -> list[Verdict]:
        return await asyncio.gather(*(judge(content, expert) for expert, content in pairs))

    pairs = [*(("42", content) for content, _ in ATTACKS.values()), *EQUAL]
    return dict(zip(pairs, asyncio.run(ask()), strict=True))


async def judge(content: str, expert: str = "42", place: str = "boxed") -> Verdict:
    action = Message(role=Role.ASSISTANT, content=content)
    return await get_verifier("math", {"answer": expert, "place": place, "wall_seconds": 3.0})(action, make_turn())


@pytest.mark.parametrize(("content", "reason"), ATTACKS.values(), ids=ATTACKS)
def test_no_answer_is_paid_that_is_not_the_experts(content: str, reason: str) -> None:
    verdict = verdicts()["42", content]

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize(("expert", "content"), EQUAL)
def test_the_same_value_in_another_form_is_paid(expert: str, content: str) -> None:
    verdict = verdicts()[expert, content]

    assert (verdict.score, verdict.reason) == (1.0, "accepted"), verdict.detail


async def test_order_of_a_pair_and_members_of_a_set_count() -> None:
    assert (await judge(r"\boxed{(2, 1)}", "(1, 2)")).score == 0.0
    assert (await judge(r"\boxed{\{1, 2, 3\}}", r"\{1, 2\}")).score == 0.0


async def test_the_box_may_have_to_stand_in_the_answer_tag() -> None:
    outside, inside = r"\boxed{42}", r"hm <answer>it is \boxed{42}</answer>"

    assert (await judge(outside, place="boxed_in_answer_tag")).reason == "no_answer"
    assert (await judge(inside, place="boxed_in_answer_tag")).score == 1.0


async def test_an_answer_of_the_row_that_is_no_formula_is_undecided() -> None:
    verdict = await judge(r"\boxed{42}", r"\frac{")

    assert (verdict.score, verdict.reason) == (None, "broken_gold")


async def test_a_call_is_no_answer() -> None:
    action = Message(role=Role.ASSISTANT, content=r"\boxed{42}", tool_calls=(ToolCall(name="add", arguments={}),))

    verdict = await get_verifier("math", {"answer": "42"})(action, make_turn())

    assert (verdict.score, verdict.reason) == (0.0, "call_instead_of_message")


def test_the_page_shows_them() -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, reason) in ATTACKS.items()]

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], "\n".join(rows)
