"""No statement of a test file is lost: one that cannot be checked outside the sandbox is refused before the start."""

import pytest

from tests.support.factories import make_turn
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import use_service
from verl_pivot.types import Message, Role
from verl_pivot.verifiers.code_tests import asserts_of
from verl_pivot.verifiers.registry import get_verifier

CASE = (
    "class T(unittest.TestCase):\n    def test_b(self):\n        self.assertEqual(f(1), 2)\n"
    "    def test_a(self):\n        "
)


@pytest.mark.parametrize(
    "source",
    [
        f"{CASE}self.assertRegex(str(f(5)), '10')",
        f"{CASE}self.assertNotAlmostEqual(f(5), 0)",
        f"{CASE}self.assertDictContainsSubset({{'a': 10}}, {{'a': f(5)}})",
        f"{CASE}self.fail()",
        f"{CASE}f(5)",
        "def test_a():\n    assert f(1) == 2\n    np.testing.assert_allclose(f(5), 10.0)",
        "def test_a():\n    assert f(1) == 2\n    f(5)",
        "assert f(1) == 2\ntesting.assert_allclose(f(5), 10.0)",
        "assert f(1) == 2\ncheck(f(5) == 10)",
        "assert f(1) == 2\nif True:\n    assert f(5) == 10",
        "@pytest.fixture(autouse=True)\ndef prepare():\n    assert f(5) == 10\ndef test_a():\n    assert f(1) == 2",
        "class TestA:\n    verify(5)\n    def test_b(self):\n        assert f(1) == 2",
    ],
)
def test_a_statement_that_would_never_run_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="which cannot be checked outside the sandbox; write asserts"):
        asserts_of(source, "")


def test_what_only_starts_tests_or_prints_is_passed_over() -> None:
    source = (
        "def verify(n, expected):\n    assert f(n) == expected\n"
        "def test_a():\n    verify(1, 2)\n    print('ok')\n"
        "verify(5, 10)\ntest_a()\nprint('done')\nif __name__ == '__main__':\n    unittest.main()"
    )

    assert asserts_of(source, "") == ("assert f(1) == 2", "assert f(5) == 10")


@pytest.mark.parametrize(
    ("imported", "test", "lines"),
    [
        ("import datetime", "f(datetime.date(2020, 1, 2)) == 4", ["import datetime"]),
        ("import numpy as np", "f(np.array([1])).tolist() == [2]", ["import numpy as np"]),
        ("from collections import deque", "f(deque([1])) == 2", ["from collections import deque"]),
        ("import math", "f(2) == math.pi", []),
        ("from solution import f", "f(1) == 2", []),
        ("import json", "f(1) == 2", []),
    ],
)
def test_a_module_of_the_tests_is_imported_where_an_input_needs_it(imported: str, test: str, lines: list[str]) -> None:
    expected = "\n".join([*lines, f"assert {test}"])

    assert asserts_of(f"{imported}\n\n\ndef test_a():\n    assert {test}", "") == (expected,)


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "test_file", "score"),
    [
        (
            "def f(x): return x * 2",
            "import math\ndef check(candidate):\n    assert candidate(math.pi) == 2 * math.pi",
            1.0,
        ),
        ("def f(x): return x", "import math\ndef check(candidate):\n    assert candidate(math.pi) == 2 * math.pi", 0.0),
        (
            "import pickle\nclass P: pass\ndef f(x): return len(pickle.dumps(P())) > x",
            "def check(candidate):\n    assert candidate(1) is True\n    assert candidate(9999) is False",
            1.0,
        ),
    ],
)
async def test_a_program_need_not_import_what_the_tests_do(
    code: str, test_file: str, score: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_service(monkeypatch)
    action = Message(role=Role.ASSISTANT, content=f"```python\n{code}\n```")
    verifier = get_verifier("code", {"test_file": test_file, "entry_point": "f"})

    verdict = await verifier(action, make_turn(expert=action))

    assert verdict.score == score, verdict.detail
