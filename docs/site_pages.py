"""Copies the pages of the site to outputs/site-pages, under the same relative paths; `make docs` calls it.

MkDocs and Zensical read one folder, and refuse links that leave it. So the folder has the repository's pages and the
files that they link to, and every link leads to the same place on the site as it does here.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "outputs" / "site-pages"
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    """Every page of the site."""
    of_root = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
    return [*of_root, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/*.md"))]


def linked_files() -> Iterator[Path]:
    """Files that pages link to and that are no pages, such as configs."""
    for page in pages():
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            linked = (page.parent / target).resolve()
            if linked.suffix != ".md" and linked.is_file():
                yield linked


def collect(target: Path = TARGET) -> None:
    """Remove the folder, and write it again."""
    shutil.rmtree(target, ignore_errors=True)
    for path in {*pages(), *linked_files(), ROOT / "docs" / "site.css"}:
        place = target / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


if __name__ == "__main__":
    collect()
