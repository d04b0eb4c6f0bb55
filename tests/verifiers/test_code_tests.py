"""verifiers.code_tests: asserts of HumanEval's, pytest's and unittest's tests."""

import json

import pytest

from tests.support.factories import make_turn
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import Message, Role, Verdict
from verl_pivot.verifiers.code import CodeOptions, CodeVerifier
from verl_pivot.verifiers.code_asserts import parse_assert
from verl_pivot.verifiers.code_errors import RaiseCheck
from verl_pivot.verifiers.code_tests import asserts_of
from verl_pivot.verifiers.code_values import read_values
from verl_pivot.verifiers.registry import get_verifier

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
        "found = total([1, 2])\nassert found == 3",
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
        "def test_a():\n    with open('x') as file: assert f(file) == 1",
        "def test_a():\n    for n in range(f(2)): assert f(n) == n",
        "def test_a():\n    for n in range(10**9): assert f(n) == n",
        "def test_a():\n    for n in range(1000000000): assert f(n) == n",
        "def test_a():\n    for n in range(3, step=2): assert f(n) == n",
        "def test_a():\n    for n in sorted([1]): assert f(n) == n",
        "class T:\n    def test_a(self): self.assertAlmostEqual(f(1), 1, tolerance=2)",
        "class T:\n    def test_a(self): self.assertEqual(f(1), 1, delta=2)",
        "def test_a():\n    while f(1): pass",
        "def test_a():\n    if f(2): assert f(3) == 3",
        "def test_a():\n    try: assert f(3) == 3\n    except ValueError: pass",
        "@fixture\ndef test_a(): assert f(3) == 3",
        "def test_a(tmp_path): assert f(tmp_path) == 3",
        "class T:\n    def test_a(self): self.assertEqual(f(1))",
        "def check(candidate): assert candidate(1) == 1",
        "@pytest.mark.parametrize('x', CASES)\ndef test_a(x): assert f(x) == 1",
        "def test_a():\n    for a, b in [(1, 2, 3)]: assert f(a) == b",
        "def test_a(): assert compare(f(2), 4)",
        "def test_a():\n    expected = make(4)\n    assert f(2) == expected",
        "def test_a():\n    right = 4\n    assert compare(f(2), right)",
        "def test_a():\n    x = f(2)\n    assert compare(x, 4)",
        "def test_a():\n    expect(4)\n    assert check(f(2))",
        "def test_a():\n    expect(4)\n    x = f(2)\n    assert check(x)",
        "def test_a():\n    c = Checker()\n    c.expect(4)\n    assert c.check(f(2))",
        "def test_a():\n    c = Checker()\n    c.expected = 4\n    assert c.check(f(2))",
        "def test_a():\n    c = Checker()\n    c.expected = 4\n    x = f(2)\n    assert c.check(x)",
        "def test_a():\n    c = {}\n    c['right'] = 4\n    assert compare(f(2), c)",
        "def test_a():\n    x = f(2)\n    assert x.equals(4)",
        "def test_a():\n    s = Solver()\n    x = s.solve(2)\n    assert x.equals(4)",
        "def test_a():\n    s = Solver()\n    s.expect(x=4)\n    x = f(2)\n    x.keep(s)\n    assert x.is_right()",
        "def test_a():\n    a = []\n    a.append(f(2))\n    b = []\n    b.append(4)\n    assert a == b",
        "def test_a():\n    c = [4]\n    touch(c)\n    assert f(2) == c",
        "def test_a():\n    c = [4]\n    c.sort()\n    assert c == [4]",
        "def test_a():\n    x = f(2)\n    y = g(3)\n    assert x == y",
        "def test_a():\n    assert f(1) == 1\n    with pytest.raises(Exception): f(2)",
        "def test_a():\n    assert f(1) == 1\n    with pytest.raises((ValueError, NameError)): f(2)",
        "def test_a():\n    assert f(1) == 1\n    with pytest.raises(ValueError): int('a')",
        "def test_a():\n    assert f(1) == 1\n    with pytest.raises(ValueError): compare(f(2), 4)",
        "def test_a():\n    assert f(1) == 1\n    with pytest.raises(ValueError) as info: f(2)",
        "def test_a():\n    assert f(1) == 1\n    with pytest.raises(ValueError):\n        f(2)\n        f(3)",
        "def test_a():\n    assert f(1) == 1\n    with pytest.raises(ValueError, match='(?=a)'): f(2)",
        "def helper(x): return helper(x)\ndef test_a(): assert helper(f(2)) == 1",
        "def helper(x, *more): return x\ndef test_a(): assert helper(f(2)) == 1",
        "def helper(x):\n    if x: return 1\ndef test_a(): assert helper(f(2)) == 1",
        "def a(x): return x + x\ndef b(x): return a(a(a(a(x))))\ndef test_a(): assert b(b(b(b(f(2))))) == 1",
        "def test_a():\n" + "".join(f"    x{n + 1} = [x{n}, x{n}]\n" for n in range(30)) + "    assert f(x30) == 1",
        "@pytest.fixture(params=[1, 2])\ndef a(request): return request.param\ndef test_a(a): assert f(a) == 1",
        "@pytest.fixture\ndef a(b): return 1\n@pytest.fixture\ndef b(a): return 1\ndef test_a(a): assert f(a) == 1",
        "@pytest.fixture\ndef a(): f(1)\ndef test_a(a): assert f(a) == 1",
        "class T:\n    def setUpClass(cls): cls.x = 1\n    def test_a(self): assert f(self.x) == 1",
        "class T:\n    def tearDown(self): f(2)\n    def test_a(self): self.y()",
    ],
)
def test_tests_that_cannot_be_split_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"the tests|entry_point|enter the sandbox|belong to the|statements|error"):
        CodeOptions(test_file=source)


STACK = '''
import unittest
import pytest
from solution import Stack, merge, sort_in_place, depth, Node, total

LARGE = [3, 1, 2]

@pytest.fixture
def numbers():
    return [1, 2, 3]

@pytest.fixture()
def stack(numbers):
    made = Stack()
    for number in numbers:
        made.push(number)
    yield made

@pytest.mark.parametrize(("given", "right"), [pytest.param([4], 4, id="one"), ([5, 5], 10)], ids=str)
def test_rows(given, right):
    assert total(given) == right

def is_sum(given, right):
    """Checks a sum."""
    assert total(given) == right

def doubled(number, times=2):
    return number * times

def test_stack(stack):
    assert stack.pop() == 3
    assert stack.pop() == 2
    assert len(stack.items) == 1
    stack.push(7)
    assert [stack.pop(), stack.pop()] == [7, 1]
    with pytest.raises(IndexError, match="empty"):
        stack.pop()
    assert stack.size() == 0

def test_two_stacks():
    first, second = Stack(), Stack()
    first.push(1)
    second.push(2)
    first.merge(second)
    assert first.size() == 2
    assert second.size() == 1

def test_sums(numbers):
    is_sum(numbers, 6)
    is_sum(given=[], right=0)
    assert doubled(total(numbers)) == 12
    assert total([5]) == doubled(5, times=1)
    found = total([2])
    assert found == 2 and found != 3

def test_in_place():
    numbers = [2, 1]
    sort_in_place(numbers)
    assert numbers == [1, 2]
    copied = sorted(LARGE)
    assert copied == [1, 2, 3] and total(LARGE) == 6

def test_tree():
    root = Node(1)
    root.left = Node(2)
    root.left.right = Node(3)
    assert depth(root) == 3
'''
METHODS = """
import unittest

class Stacks(unittest.TestCase):
    SIZE = 3

    def setUp(self):
        self.stack = Stack()
        self.right = [2, 1, 0]
        for number in range(self.SIZE):
            self.stack.push(number)

    def popped(self):
        return self.stack.pop()

    @staticmethod
    def third(number):
        return number / 3

    def test_order(self):
        for right in self.right:
            with self.subTest(right=right):
                self.assertEqual(self.popped(), right)
        self.assertEqual(self.stack.size(), 0)
        self.assertRaises(IndexError, self.stack.pop)
        with self.assertRaisesRegex(IndexError, "em.ty"):
            self.stack.pop()
        self.assertEqual(self.stack.size(), 0)

    def test_size(self):
        self.assertEqual(self.stack.size(), self.SIZE)
        self.assertEqual(self.third(total([6])), 2)
"""
RIGHT = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self):
        if not self.items: raise IndexError("the stack is empty")
        return self.items.pop()
    def size(self): return len(self.items)
    def merge(self, other): self.items += other.items
class Node:
    def __init__(self, value): self.value, self.left, self.right = value, None, None
def depth(node): return 1 + max(depth(node.left), depth(node.right)) if node else 0
def total(numbers): return sum(numbers)
def sort_in_place(numbers): numbers.sort()
"""
WRONG = {
    "forgets what is pushed": ("self.items.append(item)", "self.items = [item]"),
    "shares its items": ("self.items = []", "self.items = Stack.shared = getattr(Stack, 'shared', [])"),
    "pops the first": ("self.items.pop()", "self.items.pop(0)"),
    "does not pop": ("self.items.pop()", "self.items[-1]"),
    "raises something else": ("raise IndexError", "raise KeyError"),
    "raises another text": ("is empty", "is full"),
    "raises an error of every kind": (
        'raise IndexError("the stack is empty")',
        "raise type('E', (IndexError, ValueError, TypeError), {})('the stack is empty')",
    ),
    "raises an error of the same name": (
        'raise IndexError("the stack is empty")',
        "raise type('IndexError', (Exception,), {'__module__': 'builtins'})('the stack is empty')",
    ),
    "raises when it is made": ("self.items = []", "raise IndexError('empty')"),
    "returns the error": ("raise IndexError", "return IndexError"),
    "merges both": ("self.items += other.items", "self.items += other.items; other.items = self.items"),
    "sorts a copy": ("numbers.sort()", "return sorted(numbers)"),
    "sees one side": ("max(depth(node.left), depth(node.right))", "depth(node.left)"),
    "always raises": ("def total(numbers): ", "def total(numbers): raise IndexError('empty')\n#"),
    "is a comment": (RIGHT, "# right"),
}


async def verdict(source: str, program: str) -> Verdict:
    action = Message(role=Role.ASSISTANT, content=f"```python\n{program}\n```")
    return await get_verifier("code", {"test_file": source})(action, make_turn(expert=action))


@needs_sandbox
@pytest.mark.parametrize("source", [STACK, METHODS], ids=["pytest", "unittest"])
async def test_tests_with_state_accept_a_right_program(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)

    assert (await verdict(source, RIGHT)).score == 1.0


@needs_sandbox
@pytest.mark.parametrize("name", WRONG)
async def test_tests_with_state_refuse_a_wrong_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)
    before, after = WRONG[name]

    found = await verdict(STACK, RIGHT.replace(before, after))

    assert (found.score, RIGHT.count(before) > 0) == (0.0, True), found


@pytest.mark.parametrize(
    ("kinds", "is_right"),
    [
        (["builtins.IndexError", "builtins.LookupError", "builtins.Exception", "builtins.BaseException"], True),
        (["other.Empty", "builtins.IndexError", "builtins.LookupError"], True),
        (["builtins.KeyError", "builtins.LookupError"], False),
        (["builtins.IndexError", "builtins.KeyError", "builtins.LookupError"], False),
        (["other.IndexError", "builtins.Exception"], False),
        (["builtins.IndexError", "builtins.print"], False),
        (["builtins.IndexError", "builtins.", "builtins.none"], False),
        (["builtins.IndexError"] * 1000, False),
        (["builtins.int", [], None, 5], False),
        ([], False),
    ],
)
def test_a_forged_file_of_values_is_read_like_any_other(kinds: list[object], is_right: bool) -> None:
    content = json.dumps([{"error": "IndexError: empty", "kinds": kinds}]).encode()
    (evaluated,) = read_values(content, 1) or []
    check = parse_assert("assert raises(f(2), IndexError, match='empty')")

    assert isinstance(check, RaiseCheck)
    assert (check.problem(evaluated) is None) == is_right


def test_what_a_test_with_state_expects_stays_outside_the_sandbox() -> None:
    verifier = CodeVerifier(CodeOptions(test_file=STACK.replace("12", "987654").replace('"empty"', '"sentinel"')))
    program = verifier._assert_program("pass")

    assert b".push(7)" in program.files["plan.json"]
    repeated = json.loads(program.files["plan.json"])["checks"]
    assert all("except Exception" in check["setup"] for check in repeated if ".pop()\n" in check["setup"])
    assert not any(word in program.files["plan.json"] for word in (b"987654", b"sentinel", b"IndexError"))
