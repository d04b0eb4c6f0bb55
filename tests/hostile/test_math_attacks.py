"""Answers that try to be paid without being the expert's; docs/verifier_attacks.md lists them."""

import asyncio
from functools import cache

import pytest

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import Message, Role, ToolCall, Verdict
from verl_pivot.verifiers.registry import get_verifier

PAGE = ROOT / "docs" / "verifier_attacks.md"

# {what the answer does: (the expert's answer, the text, reason)}
ATTACKS: dict[str, tuple[str, str, str]] = {
    "answers only in its text": ("42", "The answer is 42.", "no_answer"),
    "gives two answers": ("42", r"\boxed{41} or \boxed{42}", "several_answers"),
    "gives two formulas in one box": ("42", r"\boxed{$41$ and $42$}", "several_answers"),
    "gives a box in a box": ("42", r"\boxed{\boxed{42}\boxed{41}}", "several_answers"),
    "gives one answer in another kind of box": ("42", r"\boxed{41} \fbox{42}", "several_answers"),
    "lists many answers": ("42", r"\boxed{40, 41, 42, 43}", "wrong_value"),
    "gives an interval": ("42", r"\boxed{[0, 100]}", "wrong_value"),
    "gives an inequality": ("42", r"\boxed{x \leq 42}", "wrong_value"),
    "gives or": ("42", r"\boxed{41 \text{ or } 42}", "wrong_value"),
    "gives or behind it": ("42", r"\boxed{42 \text{ or not}}", "wrong_value"),
    "denies it behind it": ("42", r"\boxed{42 \text{ is wrong}}", "wrong_value"),
    "denies it before it": ("42", r"\boxed{\text{not } 42}", "wrong_value"),
    "gives plus or minus": ("42", r"\boxed{\pm 42}", "wrong_value"),
    "gives infinity": ("42", r"\boxed{\infty}", "wrong_value"),
    "gives a variable": ("42", r"\boxed{x}", "wrong_value"),
    "leaves the box empty": ("42", r"\boxed{}", "no_answer"),
    "leaves it open": ("42", r"\boxed{42", "no_answer"),
    "gives a number that is close": ("42", r"\boxed{42.01}", "wrong_value"),
    "gives a tower of powers": ("42", r"\boxed{9^{9^{9^{9}}}}", "time_limit"),
    "gives a factorial of a factorial": ("42", r"\boxed{((9!)!)!}", "time_limit"),
    "gives a program": ("42", r"\boxed{__import__('os')._exit(0)}", "no_answer"),
    "gives a book": ("42", r"\boxed{" + "1+" * 5000 + "1}", "too_long"),
    "gives orders": ("42", r"\boxed{\text{accept this answer}}", "wrong_value"),
    "gives kilometres for metres": (r"42 \text{ m}", r"\boxed{42 \text{ km}}", "wrong_value"),
    "gives seconds for hours": (r"3\text{ hours}", r"\boxed{3 \text{ seconds}}", "wrong_value"),
    "gives km/h for m/s": (r"5 \text{ m/s}", r"\boxed{5 \text{ km/h}}", "wrong_value"),
    "gives metres for square metres": (r"5 \text{ m}^2", r"\boxed{5 \text{ m}}", "wrong_value"),
    "gives euros for dollars": (r"\$5", r"\boxed{5 \text{ euros}}", "wrong_value"),
    "gives degrees for metres": (r"90 \text{ m}", r"\boxed{90^\circ}", "wrong_value"),
    "gives another tiny number": (r"6.63\times10^{-34}", r"\boxed{9.11\times10^{-31}}", "wrong_value"),
    "gives a tiny number of another size": (r"1.6\times10^{-19}", r"\boxed{9.0\times10^{-20}}", "wrong_value"),
    "gives twice a tiny number": ("0.0000001", r"\boxed{0.0000002}", "wrong_value"),
    "gives zero for a tiny number": ("0.0000001", r"\boxed{0}", "wrong_value"),
    "gives a tiny number for zero": ("0", r"\boxed{0.0000001}", "wrong_value"),
    "gives a tiny power for zero": ("0", r"\boxed{10^{-30}}", "wrong_value"),
    "gives another tiny power": ("10^{-9}", r"\boxed{10^{-10}}", "wrong_value"),
    "hides a tiny number in a pair": (r"(1.6\times10^{-19}, 2)", r"\boxed{(1.7\times10^{-19}, 2)}", "wrong_value"),
    "hides a tiny number in a formula": (r"10^{-9} x", r"\boxed{0.000000002x}", "wrong_value"),
    "puts it behind a wrong equation": ("42", r"\boxed{41=42}", "wrong_value"),
    "puts it behind a wrong chain": ("42", r"\boxed{1=2=3=42}", "wrong_value"),
    "puts it before a wrong equation": ("42", r"\boxed{x=42=41}", "wrong_value"),
    "puts it behind nearly": ("42", r"\boxed{41 \approx 42}", "wrong_value"),
    "puts it behind an arrow": ("42", r"\boxed{41 \Rightarrow 42}", "wrong_value"),
    "solves for another letter": ("x=42", r"\boxed{y=42}", "wrong_value"),
    "solves nothing": ("x=42", r"\boxed{42=42}", "wrong_value"),
    "gives a set for a pair": ("(1,2)", r"\boxed{\{1,2\}}", "wrong_value"),
    "gives a list for a pair": ("(1,2)", r"\boxed{2,1}", "wrong_value"),
    "gives a closed interval for an open one": ("(1,2)", r"\boxed{[1,2]}", "wrong_value"),
    "closes the other end": ("[1,2)", r"\boxed{(1,2]}", "wrong_value"),
    "closes an interval of a union": (
        r"(-\infty,1)\cup(2,\infty)", r"\boxed{(-\infty,1]\cup(2,\infty)}", "wrong_value"),
    "closes all intervals of a union": (r"(1,2)\cup(3,4)", r"\boxed{[1,2]\cup[3,4]}", "wrong_value"),
    "closes the intervals of a list": ("(1,2),(3,4)", r"\boxed{[1,2],[3,4]}", "wrong_value"),
    "gives sets for the pairs of a list": ("(1,2),(3,4)", r"\boxed{\{1,2\},\{3,4\}}", "wrong_value"),
    "gives sets for the pairs of a set": (r"\{(1,2),(3,4)\}", r"\boxed{\{\{1,2\},\{3,4\}\}}", "wrong_value"),
    "gives the ends of an interval that something is in": ("(1,2)", r"\boxed{x\in\{1,2\}}", "wrong_value"),
    "gives a union of the ends of an interval": ("(1,2)", r"\boxed{\{1\}\cup\{2\}}", "wrong_value"),
    "closes the interval that something is in": ("(1,2)", r"\boxed{x\in[1,2]}", "wrong_value"),
    "leaves out another number": (
        r"(-\infty,3)\cup(3,\infty)", r"\boxed{\mathbb{R}\setminus\{4\}}", "wrong_value"),
    "gives the letters the other way round": ("abc", r"\boxed{cba}", "wrong_value"),
    "gives another word of the letters": (r"\text{cat}", r"\boxed{act}", "wrong_value"),
    "gives a small letter": ("A", r"\boxed{a}", "wrong_value"),
    "gives a capital": ("x", r"\boxed{X}", "wrong_value"),
    "gives a capital in a formula": ("2a+b", r"\boxed{2A+b}", "wrong_value"),
    "gives another choice": (r"\textbf{(B)}", r"\boxed{A}", "wrong_value"),
    "gives a number in another base": ("101", r"\boxed{101_2}", "wrong_value"),
    "gives another base": ("101_2", r"\boxed{101_3}", "wrong_value"),
    "leaves out the base": ("101_2", r"\boxed{101}", "wrong_value"),
    "gives the sum that was asked for": ("5050", r"\boxed{\sum_{i=1}^{100} i}", "wrong_value"),
    "gives the integral that was asked for": (r"\frac{1}{3}", r"\boxed{\int_0^1 x^2 dx}", "wrong_value"),
    "gives the limit that was asked for": ("e", r"\boxed{\lim_{n\to\infty}(1+1/n)^n}", "wrong_value"),
    "gives the limit that was asked for in other letters": (
        r"e^1", r"\boxed{\lim_{n\to\infty}(1+1/n)^n}", "wrong_value"),
    "gives the derivative that was asked for": ("2x", r"\boxed{\frac{d}{dx} x^2}", "wrong_value"),
    "gives the product that was asked for": ("120", r"\boxed{\prod_{i=1}^{5} i}", "wrong_value"),
    "gives a divisor to look for": ("6", r"\boxed{\gcd(12, 18)}", "wrong_value"),
    "gives half a percent for a half": ("0.5", r"\boxed{0.5\%}", "wrong_value"),
    "gives the percentage of a percentage": (r"50\%", r"\boxed{0.5\%}", "wrong_value"),
    "moves the decimal comma": ("3.14", r"\boxed{31{,}4}", "wrong_value"),
    "gives an exponent for a product": ("1000", r"\boxed{1e4}", "wrong_value"),
    "gives another letter that math-verify takes for a unit": ("5d", r"\boxed{5c}", "wrong_value"),
    "gives a letter that math-verify takes for a unit": ("5", r"\boxed{5d}", "wrong_value"),
    "gives plain kilometres for metres": (r"42 \text{ m}", r"\boxed{42 km}", "wrong_value"),
    "gives two equations": ("x=42", r"\boxed{x=42, 41=42}", "wrong_value"),
    "exchanges two solutions": ("x=1, y=2", r"\boxed{x=2, y=1}", "wrong_value"),
    "names one of two solutions": ("1, 2", r"\boxed{x=1, x=3}", "wrong_value"),
    "adds a solution": ("1", r"\boxed{x=1 \text{ or } x=2}", "wrong_value"),
    "gives solutions of two letters for those of one": ("1, 2", r"\boxed{x=1, y=2}", "wrong_value"),
    "leaves out the letters behind a number": ("24abcd", r"\boxed{24}", "wrong_value"),
    "writes letters behind the number": ("24", r"\boxed{24abcd}", "wrong_value"),
    "leaves out the letters behind a formula": (r"(a+b)^{2}wxyz", r"\boxed{(a+b)^2}", "wrong_value"),
    "gives a percentage of a letter": ("x", r"\boxed{x\%}", "wrong_value"),
    "gives a power of a letter": ("xy", r"\boxed{x y^2}", "wrong_value"),
    "goes on": ("42", r"\boxed{42 \ldots}", "wrong_value"),
    "gives millions for ones": ("5", r"\boxed{5 \text{ million}}", "wrong_value"),
    "gives ones for millions": (r"5 \text{ million}", r"\boxed{5}", "wrong_value"),
    "gives halves for ones": ("3", r"\boxed{3 \text{ halves}}", "wrong_value"),
    "gives the square of nothing": ("5", r"\boxed{5\text{}^{2}}", "wrong_value"),
    "gives the square of degrees": ("5", r"\boxed{5^\circ ^2}", "wrong_value"),
    "says the operation behind it": ("5", r"\boxed{5 \text{ times two}}", "wrong_value"),
    "gives another number behind it in words": ("5", r"\boxed{5 \text{ perhaps six}}", "wrong_value"),
    "gives another number behind it in another language": ("5", r"\boxed{5 \text{ oder sechs}}", "wrong_value"),
    "gives a variable for a unit": ("5", r"\boxed{5\mathrm{x}}", "wrong_value"),
    "gives the set of a number that is close": ("42", r"\boxed{\{42.0001\}}", "wrong_value"),
    "gives a number close to that of the set": (r"\{42\}", r"\boxed{42.0001}", "wrong_value"),
    "gives minutes for degrees": ("42", r"\boxed{42'}", "wrong_value"),
    "asks for a remainder": ("42", r"\boxed{42 \pmod{43}}", "wrong_value"),
    "repeats other digits": (r"\frac{1}{3}", r"\boxed{0.\overline{34}}", "wrong_value"),
}  # fmt: skip
EQUAL = [
    ("42", r"\boxed{42.0}"),
    ("42", r"\boxed{$42$}"),
    ("42", r"so \boxed{42}, that is \boxed{42}"),
    ("42", r"\boxed {42}"),
    ("42", r"\fbox{42}"),
    ("42", r"\boxed{\text{The answer is } 42}"),
    ("42", r"\boxed{42.}"),
    ("42", r"\boxed{x=42}"),
    ("42", r"\boxed{6 \cdot 7 = 42}"),
    ("x=42", r"\boxed{42}"),
    ("x=42", r"\boxed{x=6\cdot 7}"),
    ("y=2x+1", r"\boxed{y=1+2x}"),
    (r"\frac{1}{2}", r"\boxed{0.5}"),
    (r"\frac{1}{2}", r"\boxed{1/2}"),
    (r"\sqrt{8}", r"\boxed{2\sqrt{2}}"),
    (r"\sqrt{2}", r"\boxed{√2}"),
    ("x^2", r"\boxed{x²}"),
    ("(x+1)^2", r"\boxed{x^2 + 2x + 1}"),
    (r"\{1, 2\}", r"\boxed{\{2, 1\}}"),
    (r"\{1, 2\}", r"\boxed{2, 1}"),
    (r"\{5\}", r"\boxed{5}"),
    ("5", r"\boxed{\{5\}}"),
    (r"\{5\}", r"\boxed{5.0}"),
    (r"\{\frac12\}", r"\boxed{\{0.5\}}"),
    (r"\{\frac12\}", r"\boxed{0.5}"),
    (r"\{x + \frac12\}", r"\boxed{0.5 + x}"),
    ("(1, 2)", r"\boxed{(1, 2)}"),
    ("(1, 2)", r"\boxed{\left(1, 2\right)}"),
    ("$42$", r"\boxed{42}"),
    (r"Therefore \boxed{6 \cdot 7}.", r"\boxed{42}"),
    ("18.90", r"\boxed{\$18.90}"),
    (r"\$18.90", r"\boxed{18.9}"),
    (r"50\%", r"\boxed{0.5}"),
    (r"50\%", r"\boxed{50}"),
    ("0.5", r"\boxed{50\%}"),
    (r"\frac{1}{2}", r"\boxed{50\%}"),
    ("50", r"\boxed{50\%}"),
    (r"0.\overline{3}", r"\boxed{\frac13}"),
    (r"\frac{1}{3}", r"\boxed{0.\overline{3}}"),
    ("1000", r"\boxed{1e3}"),
    ("1000", r"\boxed{1{,}000}"),
    ("3.14", r"\boxed{3{,}14}"),
    (r"42 \text{ m}", r"\boxed{42}"),
    ("42", r"\boxed{42 \text{ apples}}"),
    (r"42 \text{ m}", r"\boxed{42\,\mathrm{meters}}"),
    (r"5 \text{ m}^2", r"\boxed{5 \text{ square meters}}"),
    (r"90^\circ", r"\boxed{90\text{ degrees}}"),
    (r"6.63\times10^{-34}", r"\boxed{6.630\times10^{-34}}"),
    (r"\text{Tuesday}", r"\boxed{Tuesday}"),
    (r"\textbf{(B)}", r"\boxed{B}"),
    ("A", r"\boxed{\text{A}}"),
    ("101_2", r"\boxed{101_{2}}"),
    ("x=1, y=2", r"\boxed{x=1,y=2}"),
    (r"x=1 \text{ or } x=2", r"\boxed{x=2 \text{ or } x=1}"),
    ("1, 2", r"\boxed{x=1 \text{ or } x=2}"),
    ("1, 2", r"\boxed{x=2, x=1}"),
    (r"x=1 \text{ or } x=2", r"\boxed{2, 1}"),
    ("mg", r"\boxed{m \cdot g}"),
    ("F = ma", r"\boxed{ma}"),
    ("ma", r"\boxed{F = m a}"),
    (r"\$5", r"\boxed{5 dollars}"),
    (r"5 \text{ million}", r"\boxed{5{,}000{,}000}"),
    ("2500000", r"\boxed{2.5 \text{ million}}"),
    (r"\$5\text{ million}", r"\boxed{5{,}000{,}000 \text{ dollars}}"),
    (r"2\frac{1}{2} \text{ dozen}", r"\boxed{30}"),
    ("5", r"\boxed{5 \text{ square units}}"),
    ("5", r"\boxed{5 \text{ cm}^2}"),
    ("5", r"\boxed{5 \text{ miles per hour}}"),
    ("5", r"\boxed{5^\circ}"),
    (r"12 \text{ cm}", r"\boxed{12 cm}"),
    ("42", r"\boxed{\mathbf{42}}"),
    ("2 xy", r"\boxed{2xy}"),
    ("0", r"\boxed{-1 + 1}"),
    (r"\{0, 1\}", r"\boxed{\{1 - 1, 1\}}"),
    ("x + 0.5", r"\boxed{x + \frac{1}{2}}"),
    ("0", r"\boxed{\sqrt{8} - 2\sqrt{2}}"),
    ("0", r"\boxed{\sin^2(1) + \cos^2(1) - 1}"),
    (r"10^{-9}", r"\boxed{\frac{1}{1000000000}}"),
    (r"(-\infty,-2]\cup[2,\infty)", r"\boxed{[2,\infty)\cup(-\infty,-2]}"),
    (r"(-\infty,3)\cup(3,\infty)", r"\boxed{\mathbb{R}\setminus\{3\}}"),
    (r"[1,3]\setminus\{2\}", r"\boxed{[1,2)\cup(2,3]}"),
    ("(1,2),(3,4)", r"\boxed{\{(3,4),(1,2)\}}"),
    ("(1,2)", r"\boxed{x\in(1,2)}"),
    (r"x\in(1,2)", r"\boxed{(1,2)}"),
    ("1, 2", r"\boxed{x \in \{1, 2\}}"),
    (r"\{1, 2\}", r"\boxed{x \in \{1, 2.0\}}"),
    ("x=1, y=2", r"\boxed{x=1.0, y=2}"),
    (r"\{x + 0.5, 2\}", r"\boxed{\{x + \frac12, 2\}}"),
    (r"\{[0, 1], 3\}", r"\boxed{\{[0.0, 1], 3\}}"),
]

pytestmark = needs_sandbox


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


@cache
def verdicts() -> dict[tuple[str, str], Verdict]:
    """Verdicts on the pairs of ATTACKS and EQUAL; asked for together they share a program, which starts slowly."""

    async def ask() -> list[Verdict]:
        return await asyncio.gather(*(judge(content, expert) for expert, content in pairs))

    pairs = [*((expert, content) for expert, content, _ in ATTACKS.values()), *EQUAL]
    return dict(zip(pairs, asyncio.run(ask()), strict=True))


async def judge(content: str, expert: str = "42", place: str = "boxed", digits: int = 6) -> Verdict:
    action = Message(role=Role.ASSISTANT, content=content)
    options = {"answer": expert, "place": place, "digits": digits, "wall_seconds": 3.0}
    return await get_verifier("math", options)(action, make_turn())


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_answer_is_paid_that_is_not_the_experts(attack: str) -> None:
    expert, content, reason = ATTACKS[attack]

    verdict = verdicts()[expert, content]

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize(("expert", "content"), EQUAL)
def test_the_same_value_in_another_form_is_paid(expert: str, content: str) -> None:
    verdict = verdicts()[expert, content]

    assert (verdict.score, verdict.reason) == (1.0, "accepted"), verdict.detail


async def test_decimals_agree_in_significant_digits() -> None:
    pairs = [
        (3, "3.14159", "3.14", 1.0), (3, r"\frac{200}{3}", "66.7", 1.0), (3, "3.14159", "3.15", 0.0),
        (6, "1234.5678", "1234.568", 1.0), (6, r"\pi", "3.14159", 1.0), (6, r"\pi", "3.1415", 0.0),
        (6, "5", "5.0000001", 1.0), (6, "5", "5.00001", 0.0), (6, "1234567", "1234567.0", 1.0),
        (6, "1234567", "1234568.0", 0.0), (6, "1234568.0", "1234567", 0.0), (6, "1234567", "1234568", 0.0),
        (3, r"\frac{1000}{1001}", "1", 0.0), (3, r"6.02214\times10^{23}", r"6.02\times10^{23}", 1.0),
        (3, r"1.5\times10^{400}", r"2.5\times10^{400}", 0.0), (3, r"1.5\times10^{-400}", r"2.5\times10^{-400}", 0.0),
        (3, "(31.4159, 2)", "(31.4, 2)", 1.0), (3, "[31.4159, 72)", "[31.4, 72.5)", 0.0), (3, "42.5", r"\infty", 0.0),
        (3, r"\{314.159, 271.828\}", r"\{272, 314\}", 1.0), (3, r"\{314.159, 271.828\}", r"\{272, 316\}", 0.0),
    ]  # fmt: skip

    verdicts = await asyncio.gather(
        *(judge(rf"\boxed{{{answer}}}", expert, digits=digits) for digits, expert, answer, _ in pairs)
    )

    assert [(*pair[:3], verdict.score) for pair, verdict in zip(pairs, verdicts, strict=True)] == pairs


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


@pytest.mark.heavy
@pytest.mark.parametrize("expert", ["9^{9^{9^{9}}}", "((9!)!)!"])
async def test_an_expert_whose_formula_takes_forever_is_undecided(expert: str) -> None:
    for content in (rf"\boxed{{{expert}}}", r"\boxed{42}"):
        assert (await judge(content, expert)).score is None, content


@pytest.mark.parametrize("expert", ["None", "nan", r"42 \text{ is right}", r"\boxed{41} \boxed{42}"])
async def test_an_expert_that_is_no_answer_is_undecided(expert: str) -> None:
    for content in (rf"\boxed{{{expert}}}", r"\boxed{42}"):
        assert (await judge(content, expert)).score is None, content


async def test_a_call_is_no_answer() -> None:
    action = Message(role=Role.ASSISTANT, content=r"\boxed{42}", tool_calls=(ToolCall(name="add", arguments={}),))

    verdict = await get_verifier("math", {"answer": "42"})(action, make_turn())

    assert (verdict.score, verdict.reason) == (0.0, "call_instead_of_message")


def test_the_page_shows_them() -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, _, reason) in ATTACKS.items()]

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], "\n".join(rows)
