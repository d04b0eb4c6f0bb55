"""A text -> its fenced code blocks, in one pass over its lines."""

import re
from typing import NamedTuple

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})([^\n]*)$")


class CodeBlock(NamedTuple):
    """One fenced block that is closed."""

    language: str
    """First word behind the opening fence, in lower case; empty if there is none."""
    text: str
    """Lines of the block, without the indentation that the opening fence has."""


class _Fence(NamedTuple):
    indentation: str
    marks: str
    info: str

    def closes(self, opening: "_Fence") -> bool:
        return self.marks.startswith(opening.marks) and not self.info.strip()


def code_blocks(text: str) -> list[CodeBlock]:
    """Every closed block, as CommonMark reads them: of backticks or tildes, at least three, indented or not.

    A block ends at the first line of as many marks of the same kind, so that a longer fence may hold shorter ones. A
    block that is never closed is left out.
    """
    blocks: list[CodeBlock] = []
    opening: _Fence | None = None
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _fence(line)
        if opening is None:
            if fence is not None and not (fence.marks[0] == "`" and "`" in fence.info):
                opening, lines = fence, []
        elif fence is not None and fence.closes(opening):
            language = opening.info.split()[0].lower() if opening.info.strip() else ""
            blocks.append(CodeBlock(language, "".join(f"{each}\n" for each in lines)))
            opening = None
        else:
            lines.append(line.removeprefix(opening.indentation))
    return blocks


def _fence(line: str) -> _Fence | None:
    found = _FENCE.match(line)
    return _Fence(found[1], found[2], found[3]) if found else None
