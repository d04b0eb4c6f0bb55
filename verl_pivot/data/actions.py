"""Text of a completion -> the policy's action as a Message, or Malformed with the reason."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from verl_pivot.data.forged_turns import forged_marker
from verl_pivot.data.json_values import BadRowError, object_of_unique_names
from verl_pivot.data.messages import parse_call
from verl_pivot.data.tagged_text import split_at_tags
from verl_pivot.types import Json, JsonObject, Malformed, Message, Role, ToolCall

_TAG = re.compile(r"</?tool_call>")
_VISIBLE = re.compile(
    # Letters and digits without Hangul's fillers; arrows, signs and emoji without the empty pattern of Braille.
    r"[^\W_\u115f\u1160\u3164\uffa0]|[\u2190-\u27ff\u2801-\u2bff\U0001f000-\U0001faff]"
)

_NOTHING_TO_READ = re.compile(
    r"<!--[^<>]{0,200}-->|</?[A-Za-z][^<>\n]{0,64}>|&#?\w{1,8};|(?:```|~~~)[\w-]*|\[/?[A-Z_]{3,12}\]|\\[nrtv]"
)
"""Tags, entities, fences, names of special tokens and escapes, which say nothing by themselves."""

TRUNCATED = Malformed(reason="truncated", detail="the completion reached its token limit before the turn ended")
"""Result for a completion that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    """Parts of one turn of the policy."""

    content: str
    """Text without thinking and calls."""
    reasoning: str | None
    calls: tuple[ToolCall | Malformed, ...]
    """Calls in the order of the text; one Malformed alone if the text around them makes the turn no action."""


def read_turn(text: str, parsed: Sequence[ToolCall | Malformed] = ()) -> TurnText:
    """Split a turn in the Hermes format: optional thinking, then text, then ``<tool_call>`` blocks.

    A turn is no action, and none of its calls counts, in three cases:

    - Its text holds markers of the chat, such as those of thinking that is never closed, of a tool's result or of the
      user's next message.
    - Text follows a call, whose result the policy does not know yet.
    - It has no calls, and its text has no visible letter.

    Args:
        text: Text of the turn.
        parsed: Calls that stand behind this text, and that a server has read already.
    """
    reasoning = None
    thinking, end, rest = text.partition("</think>")
    if end:
        reasoning, text = thinking.strip().removeprefix("<think>").strip(), rest
    blocks = split_at_tags(text, "<tool_call>", "</tool_call>")
    content = "".join(blocks.outside)
    calls = [*map(_parse_call, blocks.inside), *parsed]
    if mistake := _mistake(
        content, has_text_after_call="".join(blocks.outside[1:]).strip() != "", has_calls=bool(calls)
    ):
        calls = [mistake]
    return TurnText(content=content.strip(), reasoning=reasoning, calls=tuple(calls))


def _mistake(content: str, *, has_calls: bool, has_text_after_call: bool) -> Malformed | None:
    """Why a turn with this text outside of its calls is no action; None if it is an action."""
    if tag := _TAG.search(content):
        return Malformed(reason="malformed_call", detail=f"{tag[0]} without its partner")
    if marker := forged_marker(content, before_call=has_calls):
        return Malformed(reason="malformed_message", detail=f"{marker} stands in the text")
    if has_text_after_call:
        return Malformed(reason="malformed_message", detail="text follows a call, whose result is not known yet")
    if content.strip() and not has_calls and not _is_readable(content):
        return Malformed(reason="malformed_message", detail="the text has no visible letter")
    return None


def _is_readable(content: str) -> bool:
    """Whether a text has a visible letter, and more than markup."""
    rest = _NOTHING_TO_READ.sub("", content)
    return _VISIBLE.search(content) is not None and any(each.isprintable() and not each.isspace() for each in rest)


def parse_action(text: str, *, ended: bool) -> Message | Malformed:
    """Read one completion as an action; every call in it must be well formed.

    Args:
        text: Completion without its end-of-turn token.
        ended: Whether the policy ended its turn by itself; a turn that was cut off is not an action.
    """
    if not ended:
        return TRUNCATED
    turn = read_turn(text)
    calls: list[ToolCall] = []
    for call in turn.calls:
        if isinstance(call, Malformed):
            return call
        calls.append(call)
    return Message(role=Role.ASSISTANT, content=turn.content, reasoning=turn.reasoning, tool_calls=tuple(calls))


def _parse_call(block: str) -> ToolCall | Malformed:
    try:
        call: Json = json.loads(block, object_pairs_hook=object_of_unique_names)
    except (ValueError, RecursionError) as error:
        return Malformed(reason="malformed_call", detail=f"not JSON: {error}")
    if not isinstance(call, dict):
        return Malformed(reason="malformed_call", detail="a call must be a JSON object")
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return Malformed(reason="malformed_call", detail='a call needs "name" (text) and "arguments" (object)')
    return written_call(name, arguments)


def written_call(name: str, arguments: JsonObject) -> ToolCall | Malformed:
    """A call that the policy wrote; Malformed if its name is empty, or no file can hold it."""
    try:
        return parse_call(name, arguments, None)
    except BadRowError as error:
        return Malformed(reason="malformed_call", detail=str(error))
