"""Writes llms.txt, the list of pages for language models (llmstxt.org), from the pages: `python docs/reference.py`."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INTRODUCTION = """# verl-pivot

> PivotRL, GRPO-RoC and rollouts with tools for the stock verl trainer: a Python package that verl finds by name. SFT
> trajectories become pivots by `verl-pivot import`, `profile` and `select`; `+method=pivotrl` on a verl launch command
> trains on them.

Before you change code, read AGENTS.md and docs/architecture.md.
"""


def page_list() -> str:
    """The text of llms.txt."""
    sections = {
        "Start": [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "examples").glob("*/README.md"))],
        "Documentation": sorted((ROOT / "docs").glob("*.md")),
    }
    lines = [INTRODUCTION.rstrip()]
    for name, pages in sections.items():
        lines += ["", f"## {name}", "", *(_entry(page) for page in pages)]
    return "\n".join(lines) + "\n"


def _entry(page: Path) -> str:
    """One line of the list: the title of a page, its place, and the first sentence of its first paragraph of prose."""
    title, _, body = page.read_text(encoding="utf-8").removeprefix("# ").partition("\n")
    prose = re.sub(r"^```.*?^```$", "", body, flags=re.MULTILINE | re.DOTALL)
    paragraphs = [" ".join(part.split()) for part in prose.split("\n\n")]
    first = next((part for part in paragraphs if part and part[0] not in "#|-"), "")
    sentence = re.split(r"(?<=[.:])\s+(?=[A-Za-z]|$)", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first))[0]
    return f"- [{title}]({page.relative_to(ROOT)})" + (f": {sentence.rstrip('.:')}." if sentence else "")


def write() -> None:
    """Write llms.txt."""
    (ROOT / "llms.txt").write_text(page_list())
