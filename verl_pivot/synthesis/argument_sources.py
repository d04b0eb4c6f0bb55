"""Arguments of a call and the messages before it -> values that occur in no message and no schema."""

import re
from collections.abc import Iterable, Iterator, Sequence

from verl_pivot.data.json_values import encode_json
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_IDEOGRAPHS}]|[^\W_{_IDEOGRAPHS}]+")
"""A word; each Chinese or Japanese character counts as one, because these languages have no spaces between words."""


def unsourced_values(
    call: ToolCall, messages: Iterable[Message], tool: JsonObject, may_write: Sequence[str] = ()
) -> list[str]:
    """Values in a call's arguments, as "path: value", that occur in no message and not in the tool's schema.

    Stricter than the filter `coherence`, which checks identifiers only: every text and number needs a source. A value
    has a source if its words occur there in the same order, regardless of case and punctuation: "one_way" occurs in
    "One way, please." True, false and null need no source.

    Args:
        call: The call.
        messages: Messages before the call; messages of the assistant are ignored.
        tool: Schema of the tool, whose words (such as those of `enum`) count as a source.
        may_write: Arguments, as tool.argument, whose text the caller composes itself.
    """
    texts = [message.content for message in messages if message.role is not Role.ASSISTANT]
    known = " ".join(map(_words, [*texts, encode_json(tool)]))
    return [
        f"{path}: {value!r}"
        for argument, given in call.arguments.items()
        if f"{call.name}.{argument}" not in may_write
        for path, value in _values(given, f"{call.name}.{argument}")
        if _words(str(value)) not in known
    ]


def is_known(value: Json, messages: Iterable[Message]) -> bool:
    """Whether a message to the assistant contains a text or number as whole words."""
    texts = [message.content for message in messages if message.role is not Role.ASSISTANT]
    return _words(str(value)) in " ".join(map(_words, texts))


def asks_for(text: str, argument: str) -> bool:
    """Whether a text may ask the user for an argument: it has a question mark or a word of the argument's name."""
    names = [word for word in _words(argument).split("|") if word]
    return "?" in text or "\uff1f" in text or any(f"|{name}|" in _words(text) for name in names)


def _words(text: str) -> str:
    """The words of a text between bars, so that "in" finds whole words only; "" if it has no words, such as "-"."""
    words = _WORD.findall(text.casefold())
    return f"|{'|'.join(words)}|" if words else ""


def _values(value: Json, path: str) -> Iterator[tuple[str, str | int | float]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _values(child, f"{path}.{key}")
    elif isinstance(value, list):
        for child in value:
            yield from _values(child, path)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, int(value) if isinstance(value, float) and value.is_integer() else value
