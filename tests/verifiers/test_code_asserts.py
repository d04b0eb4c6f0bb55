"""verifiers.code_asserts: the expressions that the sandbox evaluates, and the checks outside it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_pivot.verifiers.code_asserts import parse_assert, parse_plain_value


@pytest.mark.parametrize(
    ("text", "expressions", "right", "wrong"),
    [
        ("assert f(2) == [4]", ("f(2)",), [[4]], [[5]]),
        ("assert [4] == f(2), 'four'", ("f(2)",), [[4]], [4]),
        ("assert f(2)", ("f(2)",), [True], [0]),
        ("assert not f(2)", ("f(2)",), [False], [1]),
        ("assert f(2) is None", ("f(2)",), [None], [False]),
        ("assert f(1) == 1 and g(x=2) != 3", ("f(1)", "g(x=2)"), [1, 2], [1, 3]),
        ("assert 3 in f(1)", ("f(1)",), [[1, 3]], [[1]]),
        ("assert abs(f(1) - 0.5) < 1e-6", ("f(1)",), [0.5], [0.6]),
        ("assert math.isclose(f(1), 0.1, rel_tol=0.5)", ("f(1)",), [0.11], [0.3]),
        ("assert round(f(1), 2) == 0.33", ("f(1)",), [0.333], [0.34]),
        ("assert set(f(1)) == {1, 2}", ("set(f(1))",), [{1, 2}], [{1}]),
        ("assert sorted(f(1)) == [1, 2]", ("sorted(f(1))",), [[1, 2]], [[2, 1]]),
        ("assert Stack().push(1).size == 1", ("Stack().push(1).size",), [1], [2]),
        ("assert LIMIT == 3", ("LIMIT",), [3], [4]),
        ("assert f([1, 2] * 3) == -1", ("f([1, 2] * 3)",), [-1], [1]),
    ],
)
def test_the_programs_expressions_go_to_the_sandbox_and_the_rest_is_checked_outside(
    text: str, expressions: tuple[str, ...], right: list[object], wrong: list[object]
) -> None:
    check = parse_assert(text)

    assert check.expressions == expressions
    assert check.holds(right)
    assert not check.holds(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "assert",
        "x = 1",
        "assert f(1) == 1\nassert f(2) == 2",
        "assert 1 == 1",
        "assert all(x == 1 for x in f(2))",
        "assert isinstance(f(1), int)",
        "assert [x for x in f(1)] == [1]",
        "assert f(1) * 10**9 == 0",
        "assert f(1) ** 2 == 4",
        "assert f(1) % 2 == 0",
        "assert f'{f(1)}' == '1'",
        "assert (y := f(1)) == 1",
        "assert f(1)[0] == 1 if f(2) else 0",
        "assert [*f(1)] == [1]",
    ],
)
def test_an_assert_that_cannot_be_checked_outside_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"assert|checked outside"):
        parse_assert(text)


def test_a_comparison_that_raises_does_not_hold() -> None:
    assert not parse_assert("assert f(1) < 3").holds(["a"])
    assert not parse_assert("assert abs(f(1) - 1) < 3").holds([[1]])
    assert not parse_assert("assert f(1) / 1 == 1").holds([10**400])
    assert not parse_assert("assert set([f(1)]) == {1}").holds([[1]])


@pytest.mark.parametrize(
    "text", ["f()", "__import__('os')", "[1", "<object at 0x1>", "x", "[" * 500 + "]" * 500, "1" * 9999]
)
def test_a_repr_of_anything_but_a_plain_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"plain value|malformed|digits"):
        parse_plain_value(text)


def test_nan_and_infinity_are_plain_values() -> None:
    assert parse_plain_value("[inf, -inf]") == [math.inf, -math.inf]
    assert math.isnan(parse_plain_value("{'a': nan}")["a"])


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(plain)
def test_every_plain_value_comes_back_from_its_repr(value: object) -> None:
    assert repr(parse_plain_value(repr(value))) == repr(value)
