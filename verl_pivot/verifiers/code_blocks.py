"""A text -> its fenced code blocks, in one pass over its lines."""

import re
from typing import NamedTuple

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


class CodeBlock(NamedTuple):
    """One fenced block that is closed."""

    language: str
    """First word after the opening fence, in lower case; empty if there is none."""
    text: str
    """Lines of the block, without the indentation that the opening fence has."""


def code_blocks(text: str) -> list[CodeBlock]:
    """Every closed block, as in CommonMark: between fences of at least three backticks or tildes, indented or not.

    A block ends at the first fence of the same kind that is at least as long as the opening one, so that a block may
    contain shorter fences. A block that is never closed is left out. A carriage return counts as an ordinary character,
    unless every line of the text ends in one.
    """
    if text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    blocks: list[CodeBlock] = []
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            if fence[2][0] != "`" or "`" not in fence[3]:
                opening = fence
        elif fence[2].startswith(opening[2]) and not fence[3].strip():
            language = opening[3].split()[0] if opening[3].strip() else ""
            block = text[opening.end() + 1 : fence.start()]
            blocks.append(CodeBlock(language.lower(), _without_indentation(block, opening[1])))
            opening = None
    return blocks


def _without_indentation(text: str, indentation: str) -> str:
    return "\n".join(line.removeprefix(indentation) for line in text.split("\n")) if indentation else text
