r"""Answers in LaTeX, taken apart into formula, unit, base, brackets and letters before any program runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.verifiers.math_equality import Mismatch, needed_equalities
from verl_pivot.verifiers.math_texts import read_math_answer


@pytest.mark.parametrize(
    ("text", "formula", "unit", "is_percent"),
    [
        (r"42 \text{ km}", "42", "km", False),
        (r"42\text{ kilometers}", "42", "km", False),
        (r"42\,\mathrm{m/s}", r"42\,", "m / s", False),
        (r"5 \text{ square meters}", "5", "m ^2", False),
        (r"5 \text{ m}^2", "5", "m ^2", False),
        (r"90^\circ", "90", "degree", False),
        ("12 cm", "12", "cm", False),
        ("12cm", "12", "cm", False),
        ("12meters", "12", "m", False),
        ("12 apples", "12", "apple", False),
        ("12calories", "12", "calorie", False),
        ("50percent", "50", "", True),
        ("2.5million", r"(2.5) \cdot 1000000", "", False),
        ("24abcd", "24abcd", "", False),
        ("(a+b)^{2}wxyz", "(a+b)^{2}wxyz", "", False),
        (r"\$18.90", "18.90", "$", False),
        (r"50\%", "50", "", True),
        (r"50 \text{ percent}", "50", "", True),
        (r"5\text{ cm squared}", "5", "cm ^2", False),
        (r"5\text{ meters per second squared}", "5", "m / s ^2", False),
        (r"5\text{ square units}", "5", "unit ^2", False),
        (r"5\text{ per day}", "5", "/ day", False),
        (r"20^\circ\text{C}", "20", "degree C", False),
        (r"5\text{ million}", r"(5) \cdot 1000000", "", False),
        (r"2.5\text{ billion dollars}", r"(2.5) \cdot 1000000000", "$", False),
        (r"x = 3\text{ hundred thousand}", r"x =( 3) \cdot 100 \cdot 1000", "", False),
        (r"5{,}5 \text{ million}", r"(5.5) \cdot 1000000", "", False),
        ("3 dozen", r"(3) \cdot 12", "", False),
        ("2m", "2m", "", False),
        (r"2\mathrm{i}", r"2\mathrm{i}", "", False),
        (r"41 \text{ or } 42", r"41 \text{ or } 42", "", False),
        (r"\text{The answer is } 42", "42", "", False),
        (r"0.1\overline{6}", r"\frac{1}{6}", "", False),
        (r"-1.\overline{3}", r"-\frac{4}{3}", "", False),
        ("1e-3", r"1 \times 10^{-3}", "", False),
        ("3{,}14", "3.14", "", False),
        ("1{,}000", "1{,}000", "", False),
        ("x²", "x^{2}", "", False),
        ("√2", r"\sqrt{2}", "", False),
    ],
)
def test_an_answer_is_taken_apart(text: str, formula: str, unit: str, is_percent: bool) -> None:
    answer = read_math_answer(text)

    assert answer is not None
    assert (answer.formula, answer.unit, answer.is_percent) == (formula, unit, is_percent)


@pytest.mark.parametrize(
    "text",
    [
        *(r"42 \text{ is wrong}", r"42 \text{ or not}", r"42 \text{, or 41}", r"4 \text{ no }"),
        *(r"5\text{}^{2}", r"5\text{ }^2", r"5^\circ ^2", r"5\text{ degrees}^2", r"5\text{ cm}^2^3", r"5\text{/s}"),
        *(r"5\text{ halves}", r"5\text{ pi}", r"5\text{ squared}", r"5\text{ factorial}", r"5\text{ below zero}"),
        *(r"5\text{ times two}", r"5 \text{ perhaps six}", r"5\text{ per dozen}", r"x+1 \text{ million}", "5 thirds"),
    ],
)
def test_words_behind_a_formula_that_are_no_unit_make_no_answer(text: str) -> None:
    assert read_math_answer(text) is None


@pytest.mark.parametrize(
    ("unit", "is_one"),
    [
        *(("cm", True), ("square units", True), ("cm}^{2", True), ("miles per hour", True), ("degrees", True)),
        *(("light years", True), ("kg m/s", True), ("students per class", True), ("hours", True), ("percent", True)),
        *(("oder sechs", False), ("red balls", False), ("x", False), ("M", False), ("miles / y", False)),
    ],
)
def test_words_behind_a_formula_are_one_unit_where_the_expert_gives_none(unit: str, is_one: bool) -> None:
    answer, expert, same = (read_math_answer(text) for text in (rf"5\text{{ {unit}}}", "5", rf"5\text{{ {unit}}}"))

    assert answer is not None
    assert expert is not None
    assert same is not None
    assert isinstance(needed_equalities(answer, expert), Mismatch) == (not is_one)
    assert not isinstance(needed_equalities(answer, same), Mismatch)
    assert not isinstance(needed_equalities(expert, answer), Mismatch)


parts = st.lists(
    st.sampled_from(
        ["4", "2", ".", ",", "=", "x", "A", "+", "(", ")", "[", r"\{", r"\}", "_2", "^{2}", r"\text{ km}", " "]
    )
    | st.sampled_from([r"\frac{1}{2}", r"\sum", r"\$", r"\%", r"^\circ", r"\approx ", "²", r"\text{or}", "m", r"\\"]),
    max_size=8,
).map("".join)


@given(parts, parts)
def test_no_answer_raises_and_the_experts_own_is_never_refused(text: str, expert_text: str) -> None:
    answer, expert = read_math_answer(text), read_math_answer(expert_text)
    if expert is None:
        return

    own = needed_equalities(expert, expert)
    assert not isinstance(own, Mismatch)
    assert all(expert == answer for choice in own for expert, answer in choice.pairs)
    if answer is not None:
        needed_equalities(answer, expert)


@pytest.mark.parametrize(
    ("text", "brackets"),
    [
        *(("(1,2)", "()"), (r"\left[1, 2\right)", "[)"), (r"\{(1,2),(3,4)\}", "{}"), ("((1,2),(3,4))", "()")),
        *(("1,2", ""), ("(1)", ""), ("(1,2),(3,4)", ""), (r"(-\infty,-2]\cup[2,\infty)", ""), (r"x\in(1,2)", "")),
        *((r"[1,3]\setminus\{2\}", ""), (")1,2(", ""), ("(1,2", ""), (",", "")),
    ],
)
def test_brackets_are_one_pair_around_a_whole_list(text: str, brackets: str) -> None:
    answer = read_math_answer(text)

    assert answer is not None
    assert answer.brackets == brackets


units = st.sampled_from(["m", "km", "s", "hours", "m/s", "km/h", "kg", "cm", "apples", "dollars", "m^2", "M"])


@given(st.integers(0, 1000), units, units)
def test_two_units_are_equal_or_refused(number: int, unit: str, other: str) -> None:
    answer, expert = (read_math_answer(rf"{number} \text{{ {each}}}") for each in (unit, other))

    assert answer is not None
    assert expert is not None
    assert isinstance(needed_equalities(answer, expert), Mismatch) == (unit != other)


@given(
    st.text(st.sampled_from("abAB"), min_size=1, max_size=4), st.text(st.sampled_from("abAB"), min_size=1, max_size=4)
)
def test_letters_are_equal_or_refused(one: str, other: str) -> None:
    answer, expert = read_math_answer(one), read_math_answer(other)

    assert answer is not None
    assert expert is not None
    assert isinstance(needed_equalities(answer, expert), Mismatch) == (one != other)


@pytest.mark.parametrize(
    ("text", "other", "are_equal"),
    [
        *(("xy", "x y", True), ("mg", r"m \cdot g", True), ("mg", r"m\times g", True), ("mg", "m*g", True)),
        *(("F = ma", "ma", True), ("F=m a", "ma", True), ("f(x)=x", "x", True), ("xy", "yx", False)),
        *(("x+y", "xy", False), (r"x\%", "x", False), (r"x \text{ km}", "x", False), ("2x", "x", False)),
        *(("x=y=z", "z", False), ("2=x", "x", False), ("x^2", "x", False), (r"x \cdots y", "xy", False)),
        *((r"\text{cat}", "c a t", False), (r"\text{A}", "A", True), ("x=a, y=b", "b", False), ("", "x", False)),
    ],
)
def test_a_product_of_letters_may_have_blanks_signs_and_a_name(text: str, other: str, are_equal: bool) -> None:
    one, two = read_math_answer(text), read_math_answer(other)

    assert one is not None
    assert two is not None
    for answer, expert in ((one, two), (two, one)):
        assert isinstance(needed_equalities(answer, expert), Mismatch) == (not are_equal)


@pytest.mark.parametrize(
    ("text", "other", "are_equal"),
    [("x=y", "y = x", True), ("x=42", "42=x", True), ("x=y", "z=x", False), ("x=2y", "y=2x", False)],
)
def test_the_sides_of_an_equation_may_be_exchanged(text: str, other: str, are_equal: bool) -> None:
    one, two = read_math_answer(text), read_math_answer(other)

    assert one is not None
    assert two is not None
    assert (needed_equalities(one, two) == []) == are_equal
    assert isinstance(needed_equalities(one, two), Mismatch) == (not are_equal)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        *(("x=1, x=2", "1,2"), (r"x=1 \text{ or } x=2", "1,2"), (r"x=1,\text{ and } x=2{,}5", "1,2{,}5")),
        *(
            ("1,2", "1,2"),
            ("x=1, y=2", None),
            ("x=1, 2=x", None),
            ("x=1=3, x=2", None),
            (r"x=1 \text{ not } x=2", None),
        ),
        *(("x=1, 2", None), ("1=x, 1=y", None), ("x=(1,2)", "x=(1,2)")),
    ],
)
def test_equations_of_one_name_are_a_list_of_its_values(text: str, values: str | None) -> None:
    answer = read_math_answer(text)

    assert answer is not None
    assert (None if answer.solutions is None else answer.solutions.formula) == values


@given(st.integers(0, 1000), st.lists(st.integers(0, 1000), min_size=1, max_size=4))
def test_every_side_of_a_chain_must_equal_the_expert(expert: int, sides: list[int]) -> None:
    answer, right = read_math_answer("=".join(map(str, sides))), read_math_answer(str(expert))

    assert answer is not None
    assert right is not None
    needed = needed_equalities(answer, right)
    assert not isinstance(needed, Mismatch)
    assert [pair[1] for choice in needed for pair in choice.pairs] == [str(side) for side in sides]


@pytest.mark.parametrize(
    "form", [r"0.\overline{{{}}}", "{}e2", "1e{}", "1e-{}", "{}", r"\frac{{1}}{{{}}}", "{{,}}{}", "1_{}", r"{}\%"]
)
def test_a_number_that_python_does_not_read_is_a_text(form: str) -> None:
    answer, expert = read_math_answer(form.format("3" * 5_000)), read_math_answer("1/3")

    assert expert is not None
    if answer is not None:
        needed_equalities(answer, expert)
        needed_equalities(expert, answer)


@pytest.mark.parametrize(
    ("text", "other", "are_equal"),
    [
        (r"\angle ABC", r"\angle BAC", False),
        (r"\angle ABC", r"\angle{ABC}", True),
        (r"m\angle ABC", r"\angle CBA", True),
        (r"\triangle DEF", r"\triangle EFD", False),
        (r"\square ABCD", r"\square ACBD", False),
        (r"\triangle ABC", r"\angle ABC", False),
    ],
)
def test_letters_that_name_a_figure_are_no_product(text: str, other: str, are_equal: bool) -> None:
    one, two = read_math_answer(text), read_math_answer(other)

    assert one is not None
    assert two is not None
    assert one.letters != ""
    assert (one.letters == two.letters) == are_equal


@pytest.mark.parametrize(("text", "formula"), [("½", r"\frac{1}{2}"), ("¾", r"\frac{3}{4}"), ("⅔", r"\frac{2}{3}")])
def test_a_character_may_be_a_fraction(text: str, formula: str) -> None:
    answer = read_math_answer(text)

    assert answer is not None
    assert answer.formula == formula
