"""Every hostile case has a test, and every test that docs/sandbox.md names exists."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

FILES = (
    *(ROOT / "tests" / "hostile").glob("test_sandbox_*.py"),
    *(ROOT / "tests" / "sandbox").rglob("test_*.py"),
    *(
        ROOT / "tests" / "hostile" / name
        for name in ("test_forged_answers.py", "test_host_function_attacks.py", "test_session_lies.py")
    ),
    ROOT / "tests" / "tools" / "test_tool_response.py",
    ROOT / "tests" / "launch_checks" / "test_sandbox_pool.py",
)
TESTS = "\n".join(path.read_text() for path in FILES)


def test_every_hostile_case_has_a_test() -> None:
    found = {int(number) for number in re.findall(r"(?:def test_|\")h(\d\d)_", TESTS)}

    assert sorted(found) == list(range(1, 62))


def test_every_test_that_the_page_names_exists() -> None:
    page = (ROOT / "docs/sandbox.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))

    missing = {name for name in named if f"def {name}(" not in TESTS}

    assert len(named) > 30
    assert missing == set()


def test_the_page_knows_every_limit_with_its_default_range_and_status() -> None:
    from verl_pivot.sandbox.execution import LIMIT_RANGES, Status

    page = (ROOT / "docs/sandbox.md").read_text()

    assert [name for name in LIMIT_RANGES if f"| `{name}`" not in page] == []
    assert [status.value for status in Status if f"`{status.value}`" not in page] == []


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="other users than root cannot start the services of two columns")
def test_the_page_has_the_table_of_attacks_and_each_class_has_at_least_three() -> None:
    code = "import json, sandbox_attacks as made\ncounts = made.collected()\n"
    code += "print(json.dumps([made.table(counts), {name: tests.total() for name, tests in counts.items()}]))"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'docs'}:{ROOT}"}

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)

    made, totals = json.loads(done.stdout)
    assert made in (ROOT / "docs/sandbox.md").read_text(), "run `python docs/sandbox_attacks.py`"
    assert len(totals) == 21
    assert {name for name, total in totals.items() if total < 3} == set()
