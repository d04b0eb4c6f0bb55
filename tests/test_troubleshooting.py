"""docs/troubleshooting.md: each message that the page explains stands in the source, word by word."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"


def messages_of_the_page() -> list[str]:
    """Our messages in the first column of the tables, without the backticks around them."""
    cells = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    return [cell for cell in cells if not cell.endswith(".py")]


def texts_of(node: ast.AST) -> Iterator[str]:
    """Texts in a syntax tree without its docstrings, with "..." for each value that is put into one."""
    described = {id(child.value) for child in ast.walk(node) if isinstance(child, ast.Expr)}
    for child in ast.walk(node):
        if id(child) in described:
            continue
        if isinstance(child, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in child.values)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def test_every_message_of_the_page_stands_in_the_source() -> None:
    texts = {text for path in (ROOT / "verl_pivot").rglob("*.py") for text in texts_of(ast.parse(path.read_text()))}
    messages = messages_of_the_page()

    assert len(messages) >= 30
    assert [message for message in messages if not any(message in text for text in texts)] == []


@cache
def texts_of_file(name: str) -> frozenset[str]:
    """Texts of a file of another package, such as "verl/utils/config.py"."""
    package, _, rest = name.partition("/")
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations, name
    return frozenset(texts_of(ast.parse((Path(spec.submodule_search_locations[0]) / rest).read_text())))


def test_every_message_of_verl_ray_and_sglang_stands_in_the_file_that_is_named() -> None:
    rows = re.findall(r"^\| `([a-z]+/[^`]+\.py)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)

    assert {name.partition("/")[0] for name, _ in rows} == {"ray", "sglang", "transformers", "verl"}
    assert [row for row in rows if not any(row[1] in text for text in texts_of_file(row[0]))] == []


def test_no_message_is_explained_twice() -> None:
    messages = messages_of_the_page()

    assert sorted(set(messages)) == sorted(messages)
