"""Texts that tools return -> texts that cannot end a turn of the policy; a prompt -> it with first observations."""

import re
from collections.abc import Collection, Sequence
from typing import Final

from verl_pivot.types import JsonObject

_CLOSING_TAG: Final = re.compile(r"</[\w:.-]+>")


def without_special_tokens(text: str, special_tokens: Collection[str]) -> str:
    """`text` with a space put into each special token, so that printing an end-of-turn token does not end a turn."""
    for token in special_tokens:
        if token in text:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
    return text


def without_closing_tags(text: str, template: str) -> str:
    """`text` with a space put into each tag that closes `template`, so that no document ends its own observation."""
    return without_special_tokens(text, _CLOSING_TAG.findall(template.partition("{text}")[2]))


def with_opening(prompt: Sequence[JsonObject], opening: str) -> list[JsonObject]:
    """A prompt with the first observations of the environments, at the end of the user's last message.

    Args:
        prompt: Messages as chat templates take them.
        opening: First observations of the environments; "" if they show nothing.
    """
    if not opening:
        return list(prompt)
    last = prompt[-1] if prompt else {}
    if last.get("role") == "user" and isinstance(last.get("content"), str):
        return [*prompt[:-1], {**last, "content": f"{last['content']}\n\n{opening}"}]
    return [*prompt, {"role": "user", "content": opening}]
