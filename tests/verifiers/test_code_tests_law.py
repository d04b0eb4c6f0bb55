"""The asserts of a split test file hold for a program if and only if Python runs the file itself without an error."""

import re
import sys
import types
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from tests.support.expression_runner import load_runner
from verl_pivot.verifiers.code import CodeOptions
from verl_pivot.verifiers.code_asserts import parse_assert
from verl_pivot.verifiers.code_errors import RaiseCheck
from verl_pivot.verifiers.code_tests import asserts_of
from verl_pivot.verifiers.code_values import MAX_BYTES, read_values

RIGHT = """
class Box:
    def __init__(self, items=()): self.items, self.left = list(items), None
    def push(self, item): self.items.append(item); return self
    def pop(self):
        if not self.items: raise IndexError("empty box")
        return self.items.pop()
    def size(self): return len(self.items)
    def take(self, other): self.items += other.items
def total(numbers): return sum(numbers)
def grow(numbers, by=1):
    numbers.append(by)
    return len(numbers)
def depth(box): return 0 if box is None else 1 + depth(box.left)
"""
CHANGES = (
    ("", ""),
    ("self.items.append(item)", "self.items.insert(0, item)"),
    ("self.items.pop()", "self.items[-1]"),
    ("self.items += other.items", "self.items = other.items"),
    ("return sum(numbers)", "numbers.append(0); return sum(numbers)"),
    ("numbers.append(by)", "numbers = [*numbers, by]"),
    ("1 + depth(box.left)", "1"),
    ("raise IndexError", "raise KeyError"),
    ('"empty box"', '"nothing"'),
)
BEFORE = """
import pytest
from solution import *
NUMBERS = [1, 2]
@pytest.fixture
def box():
    made = Box(NUMBERS)
    made.push(3)
    return made
def has_size(given, right):
    found = given.size()
    assert found == right
def plus_one(number): return number + 1
def test_a(box):
    other, numbers = Box(), [1, 2]
"""
STATEMENTS = st.sampled_from(
    [
        "{a}.push({n})",
        "{a}.take({b})",
        "{a} = Box([{n}])",
        "{a}, {b} = {b}, {a}",
        "{a}.left = Box()",
        "grow(numbers, {n})",
        "numbers = [{n}, 1]",
        "size = {a}.size()\n    assert size == ?",
        "assert {a}.pop() == ?",
        "assert {a}.items == ?",
        "assert {a}.size() == ?",
        "assert [{a}.size(), {b}.size()] == ?",
        "assert grow(numbers) == ?",
        "grown = grow(numbers, {n})\n    assert grown == ?",
        "assert total(numbers) == ?",
        "assert numbers == ?",
        "assert {a}.pop() == {n}",
        "assert total(numbers) > 0 and plus_one({a}.size()) >= {n}",
        "assert depth({a}) <= {n}",
        "has_size({a}, {n})",
        "has_size(right={n}, given={a})",
        "for number in range({n}):\n        {a}.push(number)\n        assert total([number]) == number",
        "with pytest.raises(IndexError, match='empty'):\n        {a}.pop()",
    ]
)
LINES = st.lists(
    st.builds(
        lambda form, names, number: "    " + form.format(a=names[0], b=names[1], n=number),
        STATEMENTS,
        st.sampled_from([("box", "other"), ("other", "box")]),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_runner(tmp_path_factory.mktemp("runner"))


def holds(runner: Any, texts: Sequence[str], program: str) -> bool:
    names: dict[str, object] = {"__name__": "candidate"}
    exec(program, names)
    return all(_holds_one(runner, text, names) for text in texts)


def _holds_one(runner: Any, text: str, names: dict[str, object]) -> bool:
    check = parse_assert(text)
    local, failure = runner.prepare(check.setup, names)
    written = [failure or runner.evaluate(each, local, MAX_BYTES) for each in check.expressions]
    values = read_values(f"[{', '.join(written)}]".encode(), len(written)) or []
    if isinstance(check, RaiseCheck):
        return check.problem(values[0]) is None
    return not any(each.problem for each in values) and check.holds([each.value for each in values])


def holds_in_python(source: str, program: str, **names: Any) -> bool:
    solution = types.ModuleType("solution")
    exec(program, vars(solution))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "solution", solution)
        exec(source.replace("@pytest.fixture\n", ""), names)
    try:
        names["test_a"](names["box"]())
    except (AssertionError, LookupError, pytest.fail.Exception):
        return False
    return True


def with_right_values(lines: Sequence[str]) -> str:
    """The file with a value of the right program in place of each "?", or 0 if the program does not get there."""
    source = BEFORE + "\n".join(lines) + "\n    assert Box([5]).size() == 1\n"
    seen: list[object] = []
    recording = re.sub(r"assert (.*) == \?", r"seen.append(copy.deepcopy(\1))", source)
    holds_in_python(f"import copy\n{recording}", RIGHT, seen=seen)
    for value in seen:
        source = source.replace("?", repr(value), 1)
    return source.replace("?", "0")


@given(LINES)
@example(["    assert grow(numbers) == ?", "    assert total(numbers) == ?"])
@example(["    for number in range(3):\n        assert grow(numbers, 2) > number", "    assert total(numbers) == ?"])
def test_a_split_file_holds_of_a_program_if_and_only_if_python_says_so(runner: Any, lines: list[str]) -> None:
    source = with_right_values(lines)
    try:
        texts = asserts_of(source, "")
        CodeOptions(test_file=source)
    except ValueError:  # such as `grow(numbers)`, then `grow(numbers, 2)`, whose 2 may be an expected value
        reject()

    for before, after in CHANGES:
        program = RIGHT.replace(before, after) if before else RIGHT
        assert holds(runner, texts, program) == holds_in_python(source, program), (after, texts)
