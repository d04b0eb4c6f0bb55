"""Text from any source -> text in HTML: signs for invisible characters, escapes, and a limit of bytes."""

import html
from bisect import bisect_right
from itertools import accumulate

from verl_pivot.inspect.visible_text import visible


def as_html(text: str) -> str:
    """The text with a sign such as ⟨U+001B⟩ for each character that would not be seen, for an element or attribute."""
    return html.escape(visible(text))


def bounded_html(text: str, max_bytes: int) -> str:
    """The text as HTML; the middle of a text that takes more than `max_bytes` is left out, and a note says how much.

    Args:
        text: Text from any source.
        max_bytes: Bytes that the beginning and the end may take in UTF-8, without the note.
    """
    if len(text) <= max_bytes and len((whole := as_html(text)).encode()) <= max_bytes:
        return whole
    num_head = _num_fitting(text, max_bytes * 2 // 3)
    num_tail = _num_fitting(text[: num_head - 1 : -1] if num_head else text[::-1], max_bytes // 3)
    num_cut = len(text) - num_head - num_tail
    note = f'<span class="cut">[{num_cut:,} characters are left out]</span>'
    return as_html(text[:num_head]) + note + as_html(text[len(text) - num_tail :])


def _num_fitting(text: str, max_bytes: int) -> int:
    """Number of characters at the beginning that take at most `max_bytes` bytes as HTML."""
    sizes = accumulate(len(as_html(character).encode()) for character in text[:max_bytes])
    return bisect_right(list(sizes), max_bytes)
