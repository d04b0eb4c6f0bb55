"""Text of a tool -> the text that a player reads: without markers of a chat template, and cut by its characters."""

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.engines.text_cut import cut_to_tokens

CHARACTERS_PER_TOKEN = 4
"""Characters that count as one token of an observation, because an endpoint does not return tokens of observations."""


class CharacterTokenizer:
    """Tokenizer whose tokens are single characters."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


def shown_to_player(text: str, max_tokens: int) -> str:
    """A text of a tool as the player reads it: cut to a limit, without markers of a chat template.

    Args:
        text: Any text.
        max_tokens: Limit in tokens of four characters; in a longer text a note replaces the middle.
    """
    return without_chat_tokens(cut_to_tokens(text, max_tokens * CHARACTERS_PER_TOKEN, CharacterTokenizer()).text)
