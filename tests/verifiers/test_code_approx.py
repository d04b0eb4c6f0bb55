"""verifiers.code_approx: a value equals `approx(...)` if and only if it equals pytest's own."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from verl_pivot.verifiers.code_approx import Approx
from verl_pivot.verifiers.code_asserts import parse_assert

NUMBERS = st.sampled_from([0, 1, -1, 1.0, 1.0000005, 1.000002, 0.1, 0.1000001, 1e-12, 2e-12, 1e300, True, False])
NUMBERS |= st.sampled_from([float("inf"), float("-inf"), float("nan")]) | st.floats() | st.integers()
NAMES = st.sampled_from("ab")
VALUES = NUMBERS | st.lists(NUMBERS, max_size=3) | st.tuples(NUMBERS, NUMBERS) | st.dictionaries(NAMES, NUMBERS)
RELATIVE, ABSOLUTE = st.sampled_from([0.0, 1e-3, 0.5]), st.sampled_from([0.0, 1e-3, 2])
TOLERANCES = st.fixed_dictionaries({}, optional={"rel": RELATIVE, "abs": ABSOLUTE, "nan_ok": st.booleans()})


@given(VALUES, VALUES, TOLERANCES)
@example(True, 1, {})
@example(1, True, {})
@example(True, 1.0000005, {})
@example([True], [False], {"abs": 2})
def test_it_equals_what_pytests_equals(value: object, expected: object, tolerances: dict[str, float]) -> None:
    assume(isinstance(value, dict) == isinstance(expected, dict))  # pytest's approx([]) equals {}, ours does not
    is_equal = value == pytest.approx(expected, **tolerances)

    assert (value == Approx(expected, **tolerances)) == is_equal


@pytest.mark.parametrize("text", ["assert f(1) == pytest.approx(0.3)", "assert approx(0.3, rel=1e-9) == f(1)"])
def test_what_it_expects_stays_outside(text: str) -> None:
    check = parse_assert(text)

    assert check.expressions == ("f(1)",)
    assert check.holds([0.1 + 0.2])
    assert not any(check.holds([wrong]) for wrong in (0.31, "0.3", None, [0.3], 10**400))


def test_tolerances_below_0_are_a_mistake_of_the_test() -> None:
    with pytest.raises(ValueError, match="below 0"):
        Approx(1, abs=-1)
