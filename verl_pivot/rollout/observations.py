"""What a tool gave back -> the text that fits: the middle of a long one is left out, and it says so."""

from collections.abc import Collection
from typing import NamedTuple, Protocol

_MAX_CHARACTERS_PER_TOKEN = 32
"""Characters per allowed token beyond which text is cut before it is tokenised: a tool may give back 100 MB."""


class Tokenizer(Protocol):
    """The part of Hugging Face's that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...


class CutText(NamedTuple):
    text: str
    num_tokens: int
    truncated: bool


def without_special_tokens(text: str, special_tokens: Collection[str]) -> str:
    """`text` in which none of them stands: a program that prints the end of a turn must not end one."""
    for token in special_tokens:
        if token in text:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
    return text


def cut_to_tokens(text: str, max_tokens: int, tokenizer: Tokenizer) -> CutText:
    """At most about `max_tokens` of `text`, from its beginning and its end in equal parts.

    Args:
        text: Of any length.
        max_tokens: The note on what is left out counts, too; where it alone has more, it is all that is left.
        tokenizer: The policy's.
    """
    reach = max_tokens * _MAX_CHARACTERS_PER_TOKEN
    is_huge = len(text) > 2 * reach
    ids = [] if is_huge else tokenizer.encode(text, add_special_tokens=False)
    if not is_huge and len(ids) <= max_tokens:
        return CutText(text, len(ids), truncated=False)
    note = "\n... [{} characters left out] ...\n"
    room = max(0, max_tokens - len(tokenizer.encode(note.format(len(text)), add_special_tokens=False)))
    num_head = (room + 1) // 2
    head_ids = tokenizer.encode(text[:reach], add_special_tokens=False)[:num_head]
    tail_ids = tokenizer.encode(text[-reach:], add_special_tokens=False)
    tail_ids = tail_ids[max(0, len(tail_ids) - (room - num_head)) :]
    # A token may hold a part of a character, which decodes to U+FFFD.
    head, tail = (tokenizer.decode(part).strip("\N{REPLACEMENT CHARACTER}") for part in (head_ids, tail_ids))
    cut = head + note.format(len(text) - len(head) - len(tail)) + tail
    return CutText(cut, len(tokenizer.encode(cut, add_special_tokens=False)), truncated=True)
