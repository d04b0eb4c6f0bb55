"""Text that a tool gave back -> text that fits its token limit: a note replaces the middle of a long one."""

from collections.abc import Collection
from typing import NamedTuple, Protocol

_MAX_CHARACTERS_PER_TOKEN = 32
"""Characters kept per allowed token before text is tokenised at all: a tool may give back 100 MB."""


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that this module uses."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...


class CutText(NamedTuple):
    """A text after it was cut to its limit."""

    text: str
    num_tokens: int
    truncated: bool
    """Whether the middle was left out."""


def without_special_tokens(text: str, special_tokens: Collection[str]) -> str:
    """`text` with a space put into each special token, so that printing an end-of-turn token does not end a turn."""
    for token in special_tokens:
        if token in text:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
    return text


def cut_to_tokens(text: str, max_tokens: int, tokenizer: Tokenizer) -> CutText:
    """Cut a text to about `max_tokens`: its beginning and its end in equal parts, and between them a note.

    Args:
        text: Text of any length.
        max_tokens: Limit, which includes the note's tokens. If the note alone exceeds it, only the note is returned.
        tokenizer: Tokenizer of the policy.
    """
    max_characters = max_tokens * _MAX_CHARACTERS_PER_TOKEN  # of each end
    is_huge = len(text) > 2 * max_characters
    ids = [] if is_huge else tokenizer.encode(text, add_special_tokens=False)
    if not is_huge and len(ids) <= max_tokens:
        return CutText(text, len(ids), truncated=False)
    note = "\n... [{} characters left out] ...\n"
    room = max(0, max_tokens - len(tokenizer.encode(note.format(len(text)), add_special_tokens=False)))
    num_head = (room + 1) // 2
    head_ids = tokenizer.encode(text[:max_characters], add_special_tokens=False)[:num_head]
    tail_ids = tokenizer.encode(text[-max_characters:], add_special_tokens=False)
    tail_ids = tail_ids[max(0, len(tail_ids) - (room - num_head)) :]
    # A token may hold a part of a character, which decodes to U+FFFD.
    head, tail = (tokenizer.decode(part).strip("\N{REPLACEMENT CHARACTER}") for part in (head_ids, tail_ids))
    cut = head + note.format(len(text) - len(head) - len(tail)) + tail
    return CutText(cut, len(tokenizer.encode(cut, add_special_tokens=False)), truncated=True)
