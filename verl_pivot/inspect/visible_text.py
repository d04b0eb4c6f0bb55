"""Text from any source -> text in which every character is visible, and its lines in a terminal's width."""

import re
from collections.abc import Iterator

from rich.cells import cell_len, chop_cells

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
"""Characters that show nothing, act on a terminal or change the direction of text; the same as in dom.js."""


def visible(text: str) -> str:
    """The text with a sign such as ⟨U+001B⟩ for each character that would not be seen."""
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def on_one_line(text: str) -> str:
    """The visible text with its line breaks and tabs as signs, for a cell of a table."""
    return visible(text).replace("\n", "⏎").replace("\t", " ")


def wrapped(text: str, width: int) -> Iterator[str]:
    """Lines of the visible text, broken behind a space where one lies in the second half of the line.

    Args:
        text: Text from any source.
        width: Cells of a line; a wide character takes two.
    """
    for line in visible(text).expandtabs(4).split("\n"):
        yield from _broken(line, width)


def _broken(line: str, width: int) -> Iterator[str]:
    begin = 0
    while len(rest := line[begin : begin + width + 1]) > width or cell_len(rest) > width:
        piece = rest[:width]
        if not rest.isascii():  # rich makes no piece of characters that take no cell
            piece = next(iter(chop_cells(piece, width)), "") or piece
        if (space := piece.rfind(" ")) >= len(piece) // 2:
            piece = piece[: space + 1]
        yield piece
        begin += len(piece)
    yield rest
