"""verifiers.code_tests: asserts of HumanEval's, pytest's and unittest's tests."""

import pytest

from verl_pivot.verifiers.code import CodeOptions
from verl_pivot.verifiers.code_tests import asserts_of

HUMAN_EVAL = '''
METADATA = {'author': 'jt'}

def check(candidate):
    """Some sums."""
    assert candidate([1, 2]) == 3, "Test 1"
    numbers = [4, 5]
    assert abs(candidate(numbers) - 9.0) < 1e-6
    assert True, "This prints if this assert fails"
    for given, right in [([7], 7), ([8, 1], 9)]:
        assert candidate(given) == right

check(total)
'''
PYTEST = """
import math
import pytest
from solution import total
import solution

NUMBERS = [1, 2]

@pytest.mark.parametrize("given, right", [([1], 1), ([2, 3], 5)])
@pytest.mark.parametrize("times", [1, 2])
def test_sums(given, right, times):
    assert total(given * times) == right * times

def test_constants():
    found = total(NUMBERS)
    assert found == 3
    assert total([0.1]) == pytest.approx(0.1, abs=1e-3)
    for number, (given, right) in enumerate(zip([[1], [2]], [1, 2])):
        assert total(given) == right + number - number
    for number in range(2, 4):
        assert total([number]) == number
    assert isinstance(solution.total([]), int)
    assert math.isclose(total([0.1, 0.2]), 0.3)
"""
UNITTEST = """
import unittest

class Sums(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(total([1]), 1)
        self.assertTrue(total([1]) > 0, "positive")
        self.assertAlmostEqual(total([0.1, 0.2]), 0.3)
        self.assertAlmostEqual(total([0.1]), 0.11, 1, "one digit")
        self.assertAlmostEqual(total([0.1]), 0.11, places=1)
        self.assertAlmostEqual(total([0.1]), 0.2, delta=0.1)
        self.assertCountEqual(total([1]), [2, 1])
        self.assertIn(total([1]), (1, 2))
        self.assertIsInstance(total([1]), int)

if __name__ == "__main__":
    unittest.main()
"""


def test_humaneval_check_becomes_asserts_of_the_entry_point() -> None:
    assert asserts_of(HUMAN_EVAL, "total") == (
        "assert total([1, 2]) == 3",
        "assert abs(total([4, 5]) - 9.0) < 1e-06",
        "assert total([7]) == 7",
        "assert total([8, 1]) == 9",
    )


def test_functions_for_pytest_become_asserts_with_their_parameters_written_out() -> None:
    assert asserts_of(PYTEST, "") == (
        "assert total([1] * 1) == 1 * 1",
        "assert total([1] * 2) == 1 * 2",
        "assert total([2, 3] * 1) == 5 * 1",
        "assert total([2, 3] * 2) == 5 * 2",
        "assert total([1, 2]) == 3",
        "assert total([0.1]) == pytest.approx(0.1, abs=0.001)",
        "assert total([1]) == 1 + 0 - 0",
        "assert total([2]) == 2 + 1 - 1",
        "assert total([2]) == 2",
        "assert total([3]) == 3",
        "assert isinstance(total([]), int)",
        "assert math.isclose(total([0.1, 0.2]), 0.3)",
    )


def test_methods_of_unittest_become_asserts() -> None:
    assert asserts_of(UNITTEST, "") == (
        "assert total([1]) == 1",
        "assert total([1]) > 0",
        "assert round(total([0.1, 0.2]) - 0.3, 7) == 0",
        "assert round(total([0.1]) - 0.11, 1) == 0",
        "assert round(total([0.1]) - 0.11, 1) == 0",
        "assert abs(total([0.1]) - 0.2) <= 0.1",
        "assert Counter(total([1])) == Counter([2, 1])",
        "assert total([1]) in (1, 2)",
        "assert isinstance(total([1]), int)",
    )


@pytest.mark.parametrize("source", [HUMAN_EVAL, PYTEST, UNITTEST])
def test_the_verifier_takes_them(source: str) -> None:
    assert CodeOptions(test_file=source, entry_point="total").all_asserts


@pytest.mark.parametrize(
    "source",
    [
        "# nothing",
        "def test_a(): pass",
        "def (",
        "def helper(x): return x == 4\ndef test_a(): assert helper(f(2))",
        "def test_a():\n    with open('x') as file: assert f(file) == 1",
        "def test_a():\n    import pytest\n    with pytest.raises(ValueError): f(2)",
        "def test_a():\n    for n in range(f(2)): assert f(n) == n",
        "def test_a():\n    for n in range(10**9): assert f(n) == n",
        "def test_a():\n    for n in range(1000000000): assert f(n) == n",
        "def test_a():\n    for n in range(3, step=2): assert f(n) == n",
        "def test_a():\n    for n in sorted([1]): assert f(n) == n",
        "class T:\n    def test_a(self): self.assertAlmostEqual(f(1), 1, tolerance=2)",
        "class T:\n    def test_a(self): self.assertEqual(f(1), 1, delta=2)",
        "def test_a():\n    while f(1): pass",
        "def test_a():\n    x = 1\n    x += f(2)\n    assert x == 3",
        "def test_a():\n    f(2)\n    assert f(3) == 3",
        "def test_a():\n    if f(2): assert f(3) == 3",
        "def test_a():\n    try: assert f(3) == 3\n    except ValueError: pass",
        "@fixture\ndef test_a(): assert f(3) == 3",
        "def test_a(tmp_path): assert f(tmp_path) == 3",
        "class T:\n    def setUp(self): self.x = 1\n    def test_a(self): self.assertEqual(f(1), 1)",
        "class T:\n    def test_a(self): self.assertRaises(ValueError, f, 1)",
        "class T:\n    def test_a(self): self.assertEqual(f(1))",
        "def check(candidate): assert candidate(1) == 1",
        "@pytest.mark.parametrize('x', CASES)\ndef test_a(x): assert f(x) == 1",
        "def test_a():\n    for a, b in [(1, 2, 3)]: assert f(a) == b",
        "def test_a(): assert compare(f(2), 4)",
        "def test_a():\n    expected = make(4)\n    assert f(2) == expected",
        "def test_a():\n    right = 4\n    assert compare(f(2), right)",
    ],
)
def test_tests_that_cannot_be_split_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"the tests|entry_point|enter the sandbox|the program's"):
        CodeOptions(test_file=source)
