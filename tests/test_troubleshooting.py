"""docs/troubleshooting.md: each message that it explains stands in the source, word by word."""

import ast
import re
from collections.abc import Iterator

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"


def messages_of_the_page() -> list[str]:
    """Messages in the first column of the tables, without the code marks around them."""
    return re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)


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


def test_no_message_is_explained_twice() -> None:
    messages = messages_of_the_page()

    assert sorted(set(messages)) == sorted(messages)
