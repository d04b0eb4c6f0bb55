"""verifiers.code_asserts: the expressions that the sandbox evaluates, and the checks outside it."""

import ast
import math
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_pivot.verifiers.code_asserts import parse_assert


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
        ("assert set(f(1)) == {1, 2}", ("f(1)",), [[1, 2, 2]], [[1]]),
        ("assert sorted(f(1)) == [1, 2]", ("f(1)",), [(2, 1)], [[2, 2]]),
        ("assert len(f(12)) == 12", ("f(12)",), ["a" * 12], [12]),
        ("assert sum(f(1)) == 3", ("f(1)",), [{1, 2}], [3]),
        ("assert list(f(1)) == [1, 2]", ("f(1)",), [iter([1, 2])], [iter([1])]),
        ("assert isinstance(f(1), (int, dict))", ("f(1)",), [{}], ["a"]),
        ("assert type(f(1)) == set", ("f(1)",), [{1}], [[1]]),
        ("assert f(1)[0] == 4", ("f(1)",), [[4, 5]], [[5, 4]]),
        ("assert f(5) == 10**9 + 7", ("f(5)",), [10**9 + 7], [7]),
        ("assert f(5) % 10 == 3", ("f(5)",), [13], [14]),
        ("assert f(1) == Counter({'a': 2})", ("f(1)",), [Counter("aa")], [Counter("a")]),
        ("assert f(1) == fractions.Fraction(1, 2)", ("f(1)",), [Fraction(1, 2)], [Fraction(1, 3)]),
        ("assert f(1) == Decimal('0.10')", ("f(1)",), [Decimal("0.1")], ["0.10"]),
        ("assert f(1) == [0] * 3 + list(range(2))", ("f(1)",), [[0, 0, 0, 0, 1]], [[0, 0, 0]]),
        ("assert f(1) == float('inf')", ("f(1)",), [math.inf], [1]),
        ("assert f(9) == math.sqrt(9)", ("f(9)",), [3.0], [9]),
        ("assert Solution().f([1, 2], 3) == [0, 1]", ("Solution().f([1, 2], 3)",), [[0, 1]], [[1, 0]]),
        ("assert f(Node(1, Node(2)), 4) == 3", ("f(Node(1, Node(2)), 4)",), [3], [4]),
        ("assert Account(100).withdraw(30) == 70", ("Account(100).withdraw(30)",), [70], [100]),
        ("assert f(np.array([1, 2]), 2) == 1", ("f(np.array([1, 2]), 2)",), [1], [2]),
        ("assert decode(encode('a')) == 'a'", ("decode(encode('a'))",), ["a"], ["b"]),
        ("assert f(1).tolist() == [1]", ("f(1).tolist()",), [[1]], [[2]]),
        ("assert all([f(1) == 1, g(2) == 4])", ("f(1)", "g(2)"), [1, 4], [1, 1]),
        ("assert f(1) != f(2)", ("f(1)", "f(2)"), [1, 2], [1, 1]),
        ("assert f(1) != float('inf')", ("f(1)",), [1], [math.inf]),
        ("assert f(1) != [7] * 2", ("f(1)",), [[7]], [[7, 7]]),
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
        "assert [x for x in f(1)] == [1]",
        "assert eval(f(1)) == 1",
        "assert f'{f(1)}' == '1'",
        "assert (y := f(1)) == 1",
        "assert f(1)[0] == 1 if f(2) else 0",
        "assert [*f(1)] == [1]",
        "assert max(*f(1)) == 1",
        "assert (lambda x: x == 4)(f(2))",
    ],
)
def test_an_assert_that_cannot_be_checked_outside_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"assert|checked outside|has no name"):
        parse_assert(text)


@pytest.mark.parametrize(
    "text",
    [
        "assert np.allclose(f(2), [4.0])",
        "assert np.array_equal(f(2), np.array([4]))",
        "assert compare(f(2), 4)",
        "assert compare(4, f(2)) == True",
        "assert compare(f(2), expected=4)",
        "assert compare(f(2), [])",
        "assert compare(*[f(2), 4])",
        "assert compare((f(2), 4))",
        "assert compare({'got': f(2), 'expected': 4})",
        "assert compare(f(2), make(4))",
        "assert compare(f(2), Node(4))",
        "assert compare(f(2), EXPECTED)",
        "assert compare(f(2), lambda: 4)",
        "assert not differs(f(2), 4)",
        "assert distance(f(2), 4) == 0",
        "assert run(lambda: f(2) == 4)",
        "assert Checker().same(f(2), 4)",
        "assert Checker(f(2), 4).holds",
        "assert Solution().f(2).equals(4)",
        "assert f(2).equals(4)",
        "assert f(2).__eq__(4)",
        "assert str(f(2)).startswith('4')",
        "assert compare[f(2), 4].holds",
        "assert f(2) == make(4)",
        "assert make(4) == f(2)",
        "assert f(2) == Node(4)",
        "assert f(2) == EXPECTED",
        "assert f(2) in answers(4)",
        "assert abs(f(2) - make(4)) < 1",
        "assert isclose(f(2), 1.0) and f(2) == make(4)",
        "assert isclose(f(2), make(4))",
        "assert len({f(2), make(4)}) == 1",
        "assert (f(2), 1) == (make(4), 1)",
        "assert max(f(2), make(4)) == min(f(2), make(4))",
        "assert f(2)[make(4)]",
        "assert all([f(2) == make(4)])",
        "assert not any([f(2) != make(4)])",
        "assert {f(2): 1} == {make(4): 1}",
        "assert sorted([f(2), make(4)])[0] == sorted([f(2), make(4)])[1]",
    ],
)
def test_an_assert_whose_helper_may_be_given_what_is_expected_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"enter the sandbox|belong to the program|call within an index|not an assert"):
        parse_assert(text)


@pytest.mark.parametrize(
    "text",
    [
        "assert (f(1) == 6, 'message')",
        "assert [f(1) == 6]",
        "assert {'ok': f(1)}",
        "assert {f(1)}",
        "assert f(1) or True",
        "assert f(1) == f(1)",
        "assert f(1) == f(2)",
        "assert f(1) == 1 or 2",
        "assert (f(1), 1)[1]",
        "assert str(f(1)) != 'no such text' or 1",
    ],
)
def test_an_assert_that_is_true_of_every_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"true whatever it holds|true of every value"):
        parse_assert(text)


@pytest.mark.parametrize(
    ("text", "entry_point"),
    [
        ("assert f(f(2), 4) == 10", "f"),
        ("assert insert(build([1]), 4) == [1, 4]", "insert"),
        ("assert Account(100).deposit(5).withdraw(30) == 75", "Account"),
        ("assert Solution().f(build([1]), 2) == 3", "f"),
        ("assert max([1, 2]) == 2", "max"),
    ],
)
def test_all_arguments_of_the_entry_point_are_inputs(text: str, entry_point: str) -> None:
    with pytest.raises(ValueError, match=r"enter the sandbox|not an assert that"):
        parse_assert(text)
    assert len(parse_assert(text, entry_point).expressions) == 1


@pytest.mark.parametrize(
    "text", ["assert compare(f(2), 4)", "assert f(2).equals(4)", "assert f(2) == make(4)", "assert check(f, 4, f(2))"]
)
def test_naming_the_entry_point_lets_no_other_function_have_constants(text: str) -> None:
    with pytest.raises(ValueError, match=r"enter the sandbox|belong to the program"):
        parse_assert(text, "f")


MARK = "987654321"
FORMS = [
    "h({}, {})",
    "({} == {})",
    "[{}, {}]",
    "({}).same({})",
    "({})[{}]",
    "isclose({}, {})",
    "({} + {})",
    "({} or {})",
]
FORMS += [
    "Checker({}, {}).holds",
    "Solution().f({}, {})",
    "{{{}: {}}}",
    "({} in {})",
    "max({}, key={})",
    "h(x={}, y={})",
]
parts = st.recursive(
    st.sampled_from(["f(1)", "f(2)", f"g({MARK})", MARK, f"[{MARK}]", f"Node({MARK})", "x"]),
    lambda inner: st.builds(lambda form, one, other: form.format(one, other), st.sampled_from(FORMS), inner, inner),
    max_leaves=6,
)


@given(parts)
def test_a_constant_enters_the_sandbox_only_as_an_input_of_one_function(part: str) -> None:
    try:
        check = parse_assert(f"assert {part}")
    except ValueError:
        return
    for expression in check.expressions:
        calls = [each for each in ast.walk(ast.parse(expression)) if isinstance(each, ast.Call)]
        functions = [each for each in calls if not ast.unparse(each.func).rpartition(".")[2][0].isupper()]
        with_inputs = [
            each for each in functions if not all(isinstance(given, ast.Call) for given in [*each.args, *each.keywords])
        ]
        assert MARK not in expression or len(with_inputs) <= 1, expression


def test_no_operation_outside_fills_the_memory() -> None:
    assert not parse_assert("assert f(1) * f(2) == 0").holds([2**21, [0]])
    assert not parse_assert("assert f(1) ** f(2) == 0").holds([10, 10**9])
    assert not parse_assert("assert round(f(1), f(2)) == 0").holds([5, -(10**9)])
    assert not parse_assert("assert f(1) % f(2) == ''").holds(["%1000000000d", 1])
    assert not parse_assert("assert len(list(range(f(1)))) == 3").holds([10**12])
    assert not parse_assert("assert len(bytes(f(1))) == 3").holds([10**12])
    assert not parse_assert("assert int(Decimal(f(1))) == 3").holds(["1e999999999"])
    assert not parse_assert("assert Fraction(f(1)) == 3").holds(["1e999999999"])
    assert not parse_assert("assert sum(f(1), []) == 3").holds([[[1]] * 1000])
    assert not parse_assert("assert set(f(1)) == 3").holds([[n * (2**61 - 1) for n in range(1000)]])
    assert not parse_assert("assert Counter(f(1)) == 3").holds([[n * (2**61 - 1) for n in range(1000)]])


def test_a_comparison_that_raises_does_not_hold() -> None:
    assert not parse_assert("assert f(1) < 3").holds(["a"])
    assert not parse_assert("assert abs(f(1) - 1) < 3").holds([[1]])
    assert not parse_assert("assert f(1) / 1 == 1").holds([10**400])
    assert not parse_assert("assert set([f(1)]) == {1}").holds([[1]])
