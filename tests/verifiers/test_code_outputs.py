"""verifiers.code_outputs, and the outputs, checkers and files of tests that the verifier `code` takes."""

import pytest

from tests.support.factories import make_turn
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import JsonObject, Message, Role, Verdict
from verl_pivot.verifiers.code_outputs import same_lines, same_words
from verl_pivot.verifiers.registry import get_verifier


@pytest.mark.parametrize(
    ("output", "right", "lines", "words"),
    [
        ("6", "6\n", True, True),
        ("6 \n\n", "6", True, True),
        ("0.5", "0.50", False, True),
        ("YES", "Yes", False, True),
        ("1 2", "1\n2", False, True),
        ("1e3", "1000.0", False, True),
        ("0.30000000000000004", "0.3", False, True),
        ("+6", "6", False, True),
        ("1234567890.0", "1234567891.0", False, False),
        ("1e10", "10000000001.0", False, False),
        ("1234567890.5", "1234567891.5", False, False),
        ("1234567890", "1234567890.5", False, False),
        ("1e20", "100000000000000000000.0", False, True),
        ("007", "7", False, True),
        (" 6", "6", False, True),
        ("7", "6", False, False),
        ("6 6", "6", False, False),
        ("", "6", False, False),
        ("1000000000001", "1000000000000", False, False),
        ("0.3001", "0.3", False, False),
        ("nan", "0", False, False),
        ("six", "6", False, False),
        ("\u0666", "6", False, False),
        ("1_0", "10", False, False),
        ("9" * 5000, "8" * 5000, False, False),
        ("1e999", "42", False, False),
        ("-1e999", "42", False, False),
        ("1e999", "0.5", False, False),
        ("42", "1e999", False, False),
        ("1e999", "1e998", False, False),
        ("9" * 399 + ".0", "42", False, False),
        ("1e999", "1E999", False, True),
    ],
)
def test_outputs_are_compared_by_lines_or_by_words(output: str, right: str, lines: bool, words: bool) -> None:
    assert (same_lines(output, right), same_words(output, right)) == (lines, words)


@pytest.fixture
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


async def judge(code: str, **options: object) -> Verdict:
    settings: JsonObject = {"wall_seconds": 3.0, **options}  # type: ignore[dict-item]
    action = Message(role=Role.ASSISTANT, content=f"```python\n{code}\n```")
    return await get_verifier("code", settings)(action, make_turn(expert=action))


CHECKER = """
number = int(open("input.txt").read())
given = [int(word) for word in open("output.txt").read().split()]
assert open("expected.txt").read()
raise SystemExit(0 if len(given) == 2 and sum(given) == number and min(given) > 0 else 1)
"""
SUMS = [{"stdin": "7", "stdout": "3 4"}, {"stdin": "2", "stdout": "1 1"}]


@needs_sandbox
@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("code", "score"),
    [
        ("n = int(input()); print(1, n - 1)", 1.0),
        ("n = int(input()); print(n - 1, 1)", 1.0),
        ("n = int(input()); print(0, n)", 0.0),
        ("print(3, 4)", 0.0),
        ("print('three four')", 0.0),
        ("print(open('expected.txt').read())", 0.0),
        ("print('9' * 50_000, 4)", 0.0),
        ("pass", 0.0),
    ],
)
async def test_a_checker_decides_where_several_outputs_are_right(code: str, score: float) -> None:
    assert (await judge(code, tests=SUMS, checker=CHECKER)).score == score


@pytest.mark.heavy
@needs_sandbox
@pytest.mark.usefixtures("sandbox")
async def test_a_checker_that_fails_on_the_expected_output_makes_the_row_undecided() -> None:
    hangs_on_text = "import time\nif open('output.txt').read() != '3 4\\n': time.sleep(99)"

    assert (await judge("print(3, 4)", tests=SUMS[:1], checker="import os; os._exit(7)")).reason == "broken_gold"
    assert (await judge("print(3, 4)", tests=SUMS[:1], checker="raise SystemExit(3)")).score is None
    assert (await judge("print('x')", tests=[{"stdout": "3 4\n"}], checker=hangs_on_text)).reason == "time_limit"


@needs_sandbox
@pytest.mark.usefixtures("sandbox")
async def test_several_outputs_may_be_right_and_tests_may_be_a_file() -> None:
    either: JsonObject = {"tests": [{"stdin": "1", "stdout": ["a b", "b a"]}]}
    check = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9\n"

    assert (await judge("print('b a')", **either)).score == 1.0
    assert (await judge("print('b b')", **either)).score == 0.0
    assert (await judge("print('A  B')", **either, output="words")).score == 1.0
    assert (await judge("def square(x): return x * x", test_file=check, entry_point="square")).score == 1.0
    assert (await judge("def square(x): return 4", test_file=check, entry_point="square")).score == 0.0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tests": SUMS, "asserts": ["assert f(1) == 1"]},
        {"asserts": ["assert f(1) == 1"], "test_file": "assert f(1) == 1"},
        {"asserts": ["assert f(1) == 1"], "checker": CHECKER},
        {"tests": [{"stdout": []}]},
        {"tests": [{"stdout": ["", " "]}]},
        {"test_file": "assert f(1) == 1", "language": "bash"},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: JsonObject) -> None:
    with pytest.raises(ValueError, match="code"):
        get_verifier("code", options)
