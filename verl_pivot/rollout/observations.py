"""Text that a tool gave back -> text that does not end a turn of the policy."""

from collections.abc import Collection


def without_special_tokens(text: str, special_tokens: Collection[str]) -> str:
    """`text` with a space put into each special token, so that printing an end-of-turn token does not end a turn."""
    for token in special_tokens:
        if token in text:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
    return text
