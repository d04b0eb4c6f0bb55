"""Every hostile case has a test, and every test that docs/sandbox.md names exists."""

import re

from tests.support.paths import ROOT

FILES = (
    *(ROOT / "tests" / "hostile").glob("test_sandbox_*.py"),
    *(ROOT / "tests" / "sandbox").rglob("test_*.py"),
    *(ROOT / "tests" / "hostile" / name for name in ("test_forged_answers.py", "test_session_lies.py")),
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
