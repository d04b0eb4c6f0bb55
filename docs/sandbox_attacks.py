"""Writes the table of classes of attacks into docs/sandbox.md: `python docs/sandbox_attacks.py`. A test compares it.

Each NAME of `@pytest.mark.finding(NAME, where=COLUMN)` is a row. Without `where`, the parameter `kind` of a test gives
the column; without `kind`, it is the first column. A cell has the number of tests, where each set of parameters counts.
"""

import contextlib
import io
import os
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/sandbox.md"
BEGIN, END = "<!-- classes of attacks -->\n", "<!-- end of classes -->\n"
COLUMNS = {
    "zygote": "zygote",
    "zygote_by_root": "zygote, by root",
    "bwrap_exec": "bwrap_exec",
    "bwrap_exec_by_root": "bwrap_exec, by root",
    "zygote_without_proc": "zygote, T3",
    "no service": "no service",
}
"""{`kind` or `where` of a test: heading of the column}."""


class Collected:
    """Plugin of pytest that counts the tests of each class and column."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def pytest_collection_finish(self, session: object) -> None:
        for item in session.items:  # type: ignore[attr-defined]  # pytest is imported where it is needed
            mark = item.get_closest_marker("finding")
            if mark is not None:
                parameters = item.callspec.params if hasattr(item, "callspec") else {}
                column = mark.kwargs.get("where") or str(parameters.get("kind", "zygote"))
                self.counts.setdefault(mark.args[0], Counter())[column] += 1


def collected() -> dict[str, Counter[str]]:
    """{class of attacks: {column: number of tests}}, in the order of the files.

    Raises:
        RuntimeError: If the tests cannot be collected.
    """
    import pytest

    found, said = Collected(), io.StringIO()
    folders = [str(ROOT / "tests" / name) for name in ("hostile", "sandbox")]
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *folders], plugins=[found])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests cannot be collected:\n{said.getvalue()}")
    return found.counts


def table(counts: dict[str, Counter[str]]) -> str:
    """The table in Markdown.

    Raises:
        ValueError: If a test names an unknown column.
    """
    lines = [f"| Class | {' | '.join(COLUMNS.values())} |", f"|---|{'--:|' * len(COLUMNS)}"]
    for name, tests in sorted(counts.items()):
        if unknown := tests.keys() - COLUMNS.keys():
            raise ValueError(f"{name}: {sorted(unknown)} are no columns; use one of {', '.join(COLUMNS)}")
        lines.append(f"| {name} | {' | '.join(str(tests[column] or '-') for column in COLUMNS)} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, made: str) -> str:
    """The page with this table between its marks."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}{made}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    if os.geteuid() != 0:
        raise SystemExit("as root: other users cannot start the services of two columns")
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(with_table(PAGE.read_text(), table(collected())))
