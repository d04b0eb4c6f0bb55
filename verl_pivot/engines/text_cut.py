"""Texts -> texts within a limit of tokens: a note replaces the middle of each text that is too long."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, Protocol

from verl_pivot.errors import ConfigError

_NOTE = "\n... [{} characters left out] ...\n"
NOTE_TOKENS = 32
"""Maximum number of tokens in the note that replaces a text."""
_LEAST_TOKENS = 64
"""Tokens that each text keeps in the first pass; only a second pass replaces whole texts by a note."""
_MAX_CHARACTERS_PER_TOKEN = 32
"""Characters kept per allowed token before a text is tokenised, because a tool may return 100 MB."""


class Tokenizer(Protocol):
    """The methods of a Hugging Face tokenizer that this module uses."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: list[int]) -> str: ...


class CutText(NamedTuple):
    """A text that was cut to a limit of tokens."""

    text: str
    num_tokens: int
    truncated: bool
    """Whether the middle was left out."""


def cut_to_tokens(text: str, max_tokens: int, tokenizer: Tokenizer) -> CutText:
    """Cut a text to about `max_tokens`: equal parts of its beginning and its end, with a note between them.

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
    note = _NOTE
    room = max(0, max_tokens - len(tokenizer.encode(note.format(len(text)), add_special_tokens=False)))
    num_head = (room + 1) // 2
    head_ids = tokenizer.encode(text[:max_characters], add_special_tokens=False)[:num_head]
    tail_ids = tokenizer.encode(text[max(0, len(text) - max_characters) :], add_special_tokens=False)
    tail_ids = tail_ids[max(0, len(tail_ids) - (room - num_head)) :]
    # A token may hold a part of a character, which decodes to U+FFFD.
    head, tail = (tokenizer.decode(part).strip("\N{REPLACEMENT CHARACTER}") for part in (head_ids, tail_ids))
    cut = head + note.format(len(text) - len(head) - len(tail)) + tail
    return CutText(cut, len(tokenizer.encode(cut, add_special_tokens=False)), truncated=True)


def fit_together(texts: Sequence[str], order: Sequence[int], max_tokens: int, tokenizer: Tokenizer) -> list[str]:
    """Cut the middle out of texts, one after the other, until all texts together have about `max_tokens`.

    Args:
        texts: Texts of any length.
        order: Positions in `texts`, each once. The first text in this order is cut first, down to 64 tokens, then the
            next. If that is not enough, a note alone replaces the first text, then the next.
        max_tokens: Limit of all texts together.
        tokenizer: Any tokenizer; the tokenizer of another model gives slightly different counts.

    Raises:
        ConfigError: If there are so many texts that even the notes alone have more tokens.
    """
    if sum(len(text.encode(errors="replace")) for text in texts) <= max_tokens:  # a token has at least one byte
        return list(texts)
    fitted = list(texts)
    sizes = [_least_size(text, max_tokens, tokenizer) for text in texts]
    for least, position in product((_LEAST_TOKENS, 0), order):
        excess = sum(sizes) - max_tokens
        if excess <= 0:
            return fitted
        if sizes[position] <= least:
            continue
        cut = cut_to_tokens(texts[position], max(least, sizes[position] - excess), tokenizer)
        if cut.num_tokens < sizes[position]:  # a note may be longer than what it replaces
            fitted[position], sizes[position] = cut.text, cut.num_tokens
    if sum(sizes) > max_tokens:
        raise ConfigError(
            f"the {len(texts)} texts of a question have {sum(sizes)} tokens even after cutting, more than the "
            f"{max_tokens} that they may have: raise max_question_tokens"
        )
    return fitted


def _least_size(text: str, max_tokens: int, tokenizer: Tokenizer) -> int:
    """Number of tokens of a text; of a huge text, which is not tokenised to its end, some number above `max_tokens`.

    Only the first 64 characters per allowed token are counted. The rest may have most of the tokens, since one token of
    a common tokenizer may stand for 128 spaces.
    """
    beginning = text[: 2 * max_tokens * _MAX_CHARACTERS_PER_TOKEN]
    num_tokens = len(tokenizer.encode(beginning, add_special_tokens=False))
    return num_tokens if beginning == text else num_tokens + max_tokens
