"""Programs that try to be paid without solving the task; docs/verifier_attacks.md lists them."""

import pytest

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import JsonObject, Message, Role, Verdict
from verl_pivot.verifiers.registry import get_verifier

PAGE = ROOT / "docs" / "verifier_attacks.md"
RIGHT = "def total(numbers):\n    return sum(numbers)"
ASSERTS: JsonObject = {
    "asserts": [
        "assert total([1, 2, 3]) == 6",
        "assert total([]) == 0",
        "assert total([-5, 4]) == -1",
        "assert isclose(total([0.5, 0.25]), 0.75)",
    ],
    "wall_seconds": 3.0,
}
RIGHT_PROGRAM = "input()\nprint(sum(map(int, input().split())))"
TESTS: JsonObject = {
    "tests": [{"stdin": "3\n1 2 3\n", "stdout": "6"}, {"stdin": "2\n-5 4\n", "stdout": "-1\n"}],
    "wall_seconds": 3.0,
}

FUNCTIONS: dict[str, tuple[str, str]] = {
    "is a comment": ("# return the total", "runtime_error"),
    "ends the interpreter with exit code 0": ("import os\nos._exit(0)", "wrong_output"),
    "raises SystemExit(0)": ("raise SystemExit(0)", "wrong_output"),
    "ends it when it is called": ("import os\ndef total(numbers): os._exit(0)", "wrong_output"),
    "returns an object that equals everything": (
        "class Any:\n    def __eq__(self, other): return True\ndef total(numbers): return Any()",
        "wrong_output",
    ),
    "returns one whose repr is the first result": (
        "class Six:\n    def __repr__(self): return '6'\ndef total(numbers): return Six()",
        "wrong_output",
    ),
    "returns the first result always": ("def total(numbers): return 6", "wrong_output"),
    "returns it as text": (f"{RIGHT.replace('sum(numbers)', 'str(sum(numbers))')}", "wrong_output"),
    "returns NaN": ("def total(numbers): return float('nan')", "wrong_output"),
    "returns a list of many results": ("def total(numbers): return [6, 0, -1, 0.75]", "wrong_output"),
    "replaces repr": (
        "import builtins\nbuiltins.repr = lambda value: '6'\ndef total(numbers): return 6",
        "wrong_output",
    ),
    "replaces the function that evaluates the tests": (
        "import sys\nsys._getframe(1).f_globals['evaluate'] = lambda *_: '{\"value\": 0}'",
        "wrong_output",
    ),
    "writes the file of values itself": (
        "import json, os\njson.dump([{'value': 'True'}] * 4, open('values.json', 'w'))\nos._exit(0)",
        "wrong_output",
    ),
    "looks for what is expected in all files and frames": (
        "import glob, re, sys\n"
        "names = [name for name in glob.glob('/tmp/**', recursive=True) if '.' in name]\n"
        "found = [open(name, errors='replace').read() for name in names]\n"
        "frame = sys._getframe()\n"
        "while frame: found.append(repr(frame.f_globals) + repr(frame.f_locals)); frame = frame.f_back\n"
        "expected = re.findall(r'== (-?[0-9.]+)', ''.join(found))\n"
        "def total(numbers): return eval(expected.pop(0))",
        "runtime_error",
    ),
    "writes a name with a Cyrillic letter": (RIGHT.replace("total", "tоtal"), "runtime_error"),  # noqa: RUF001
    "never ends": ("def total(numbers):\n    while True: pass", "time_limit"),
    "takes all memory": ("def total(numbers): return [0] * 10**12", "runtime_error"),
    "returns millions of digits": ("def total(numbers): return [9] * 5_000_000", "output_limit"),
    "hides a half character": ("def total(numbers): return '\ud800'", "wrong_type"),
    "returns a set of numbers with one hash": (
        "def total(numbers): return {n * (2**61 - 1) for n in range(4000)}",
        "wrong_output",
    ),
    "returns a dictionary of such numbers": (
        "def total(numbers): return dict.fromkeys(n * (2**61 - 1) for n in range(4000))",
        "wrong_output",
    ),
    "returns a megabyte of text": ("def total(numbers): return 'a' * 10**6", "output_limit"),
    "returns a list that holds itself": (
        "def total(numbers):\n    found = []\n    found.append(found)\n    return found",
        "runtime_error",
    ),
    "returns lists in lists in lists": (
        "def total(numbers):\n    found = []\n    for _ in range(10**5): found = [found]\n    return found",
        "runtime_error",
    ),
    "returns results without end": (
        "import itertools\ndef total(numbers): return itertools.count()",
        "output_limit",
    ),
    "returns a generator of the result": ("def total(numbers): yield sum(numbers)", "wrong_output"),
    "returns a number that equals everything": (
        "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def total(numbers): return Any(7)",
        "wrong_output",
    ),
    "returns a list that equals everything": (
        "class Any(list):\n    def __eq__(self, other): return True\ndef total(numbers): return Any()",
        "wrong_output",
    ),
    "returns a decimal number of a billion digits": (
        "from decimal import Decimal\ndef total(numbers): return Decimal('1e999999999')",
        "wrong_output",
    ),
    "returns a fraction of 5,000 digits": (
        "from fractions import Fraction\ndef total(numbers): return Fraction(10**5000, 3)",
        "wrong_output",
    ),
    "returns a range of a trillion numbers": ("def total(numbers): return range(10**12)", "wrong_output"),
    "returns an array of many results": (
        "import numpy\ndef total(numbers): return numpy.array([6, 0, -1, 0.75])",
        "wrong_output",
    ),
    "returns another number at each call": (
        "import itertools\ncounter = itertools.count()\ndef total(numbers): return next(counter)",
        "wrong_output",
    ),
    "raises the result": ("def total(numbers): raise ValueError(sum(numbers))", "runtime_error"),
    "interrupts the evaluation": ("def total(numbers): raise KeyboardInterrupt", "runtime_error"),
    "defines what the test applies": (
        "def isclose(*_): return True\nabs = len = isclose\ndef total(numbers): return 0",
        "wrong_output",
    ),
    "replaces the module that writes values": (
        "import json\njson.dumps = lambda *_: '{\"value\": 6}'\ndef total(numbers): return 1",
        "wrong_output",
    ),
    "replaces the function that encodes values": (
        "import sys\nnames = sys._getframe(1).f_globals\nnames['encode'] = lambda *_: 6\ndef total(numbers): return 1",
        "wrong_output",
    ),
    "writes the file of values at its end": (
        "import atexit\ndef write():\n    with open('values.json', 'w') as f: f.write('[{\"value\": 6}]' * 4)\n"
        "atexit.register(write)\ndef total(numbers): return 1",
        "wrong_output",
    ),
    "makes the file of values a link": ("import os\nos.symlink('plan.json', 'values.json')\n" + RIGHT, "wrong_output"),
    "makes it a folder": ("import os\nos.mkdir('values.json')\n" + RIGHT, "runtime_error"),
    "writes a megabyte of values": (
        "import os\nwith open('values.json', 'w') as f: f.write('[' + '6, ' * 333_333 + '6]')\nos._exit(0)",
        "output_limit",
    ),
    "writes values in 100,000 brackets": (
        "import os\nwith open('values.json', 'w') as f: f.write('[' * 100_000)\nos._exit(0)",
        "wrong_output",
    ),
    "writes a set of numbers with one hash as values": (
        "import json, os\nvalue = {'value': {'set': [n * (2**61 - 1) for n in range(2000)]}}\n"
        "with open('values.json', 'w') as f: json.dump([value] * 4, f)\nos._exit(0)",
        "wrong_output",
    ),
}
PROGRAMS: dict[str, tuple[str, str]] = {
    "prints nothing": ("pass", "wrong_output"),
    "prints the first result always": ("print(6)", "wrong_output"),
    "prints both results": ("print(6)\nprint(-1)", "wrong_output"),
    "prints the input": ("print(input())\nprint(input())", "wrong_output"),
    "prints the result to stderr": (
        "import sys\ninput()\nprint(sum(map(int, input().split())), file=sys.stderr)",
        "wrong_output",
    ),
    "prints the result and fails": (f"{RIGHT_PROGRAM}\nraise SystemExit(1)", "runtime_error"),
    "kills itself after the result": (
        f"{RIGHT_PROGRAM[:-1]}, flush=True)\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "runtime_error",
    ),
    "floods its output": ("while True: print('6' * 1000)", "output_limit"),
    "forks without end": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "time_limit"),
    "does not compile": ("print(6", "runtime_error"),
    "looks for a file of results": (
        "import glob\nfor name in glob.glob('/[a-oq-rt-z]*/*expected*'): print(open(name).read())",
        "wrong_output",
    ),
    "prints the result as a float": (f"{RIGHT_PROGRAM[:-1]} * 1.0)", "wrong_output"),
    "prints it in words": ("print('six' if input() == '3' else 'minus one')", "wrong_output"),
    "prints it in full-width digits": ("print('６' if input() == '3' else '-１')", "wrong_output"),  # noqa: RUF001
    "prints it among others": ("print(6, -1)", "wrong_output"),
    "prints it and goes on": (f"{RIGHT_PROGRAM}\nprint('done')", "wrong_output"),
    "prints it behind a NUL": (RIGHT_PROGRAM.replace("print(", "print('\\0', "), "wrong_output"),
    "prints it behind a carriage return": (
        RIGHT_PROGRAM.replace("print(", "print('7', end='\\r'); print("),
        "wrong_output",
    ),
    "prints it and takes it back": (RIGHT_PROGRAM.replace("print(", "print('7\\b', end=''); print("), "wrong_output"),
}
CONVERSIONS: JsonObject = {
    "asserts": [
        "assert len(word(12)) == 12",
        "assert sum(word(3)) == 6",
        "assert sorted(word(2)) == [1, 2]",
        "assert set(word(2)) == {1, 2}",
        "assert isinstance(word(1), list)",
    ],
    "score": "pass_rate",
    "wall_seconds": 3.0,
}

pytestmark = needs_sandbox


@pytest.fixture(autouse=True)
def sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    use_service(monkeypatch)


def block(code: str) -> Message:
    return Message(role=Role.ASSISTANT, content=f"Here it is:\n\n```python\n{code}\n```\n")


async def judge(action: Message, options: JsonObject) -> Verdict:
    return await get_verifier("code", options)(action, make_turn(expert=block(RIGHT)))


@pytest.mark.parametrize(("code", "reason"), FUNCTIONS.values(), ids=FUNCTIONS)
async def test_no_function_is_paid_that_does_not_pass(code: str, reason: str) -> None:
    verdict = await judge(block(code), ASSERTS)

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize(
    "returned", ["number", "'aa'", "None", "{'len': 12}"], ids=["the number", "a text", "nothing", "a dictionary"]
)
async def test_what_a_test_applies_to_a_value_is_never_the_programs(returned: str) -> None:
    names = "len = sum = sorted = set = isinstance = lambda value, *_: value"
    code = f"{names}\ndef word(number): return {returned}"

    verdict = await judge(block(code), CONVERSIONS)

    assert (verdict.score, verdict.reason) == (0.0, "wrong_output"), verdict.detail


@pytest.mark.parametrize(("code", "reason"), PROGRAMS.values(), ids=PROGRAMS)
async def test_no_program_is_paid_that_does_not_pass(code: str, reason: str) -> None:
    verdict = await judge(block(code), TESTS)

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize(("code", "options"), [(RIGHT, ASSERTS), (RIGHT_PROGRAM, TESTS)])
async def test_the_right_one_is_paid(code: str, options: JsonObject) -> None:
    assert (await judge(block(code), options)).score == 1.0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("The total is 6, 0, -1 and 0.75.", "no_answer"),
        (f"```python\n{RIGHT}\n```\n\n```python\ndef total(numbers): return 6\n```", "wrong_output"),
        (f"```python\n{RIGHT}", "no_answer"),
        ("```\n```", "no_answer"),
        ("```python\n" + "#" * 300_000 + "\n```", "too_long"),
        (f"```output\n{RIGHT}\n```\n\n```python\ndef total(numbers): return 6\n```", "wrong_output"),
        (f"````\n```python\n{RIGHT}\n```", "no_answer"),
        (f"```python\n{RIGHT}\n~~~", "no_answer"),
    ],
    ids=[
        "only text",
        "a right block and a wrong one last",
        "a block left open",
        "an empty block",
        "a large one",
        "a right block of output and a wrong program",
        "a block in a longer fence that is left open",
        "a block that another fence closes",
    ],
)
async def test_a_text_without_one_last_program_is_refused(content: str, reason: str) -> None:
    verdict = await judge(Message(role=Role.ASSISTANT, content=content), ASSERTS)

    assert (verdict.score, verdict.reason) == (0.0, reason)


@pytest.mark.parametrize(
    "text",
    [
        f"~~~python\n{RIGHT}\n~~~",
        f"````python\n{RIGHT}\n````",
        "1. Sum them:\n\n   ```python\n   " + RIGHT.replace("\n", "\n   ") + "\n   ```",
        f"```python\n{RIGHT}\n```\nIt prints\n```output\n6\n```",
        f"```python\r\n{RIGHT}\r\n```\r\n",
    ],
    ids=["tildes", "four backticks", "indented", "with its output", "Windows lines"],
)
async def test_a_program_in_a_fence_of_another_kind_is_read(text: str) -> None:
    assert (await judge(Message(role=Role.ASSISTANT, content=text), ASSERTS)).score == 1.0


def test_the_page_shows_them() -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, reason) in {**FUNCTIONS, **PROGRAMS}.items()]

    missing = [row for row in rows if row not in PAGE.read_text()]

    assert missing == [], "\n".join(rows)
