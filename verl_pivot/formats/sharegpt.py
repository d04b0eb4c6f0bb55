"""Format `sharegpt`: `conversations` with `from` and `value`, as LLaMA-Factory, APIGen-MT and ToolACE write them."""

from collections.abc import Iterable

from verl_pivot.data.json_values import BadRowError, as_object
from verl_pivot.data.messages import parse_call, text_of
from verl_pivot.formats.bracket_calls import read_bracket_calls
from verl_pivot.formats.columns import (
    conversation,
    end_of_thinking,
    merge_pieces,
    message_list,
    read_message,
    tool_list,
)
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.literals import parse_literal
from verl_pivot.formats.registry import register_format
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_ROLES = {
    "system": Role.SYSTEM,
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "function_call": Role.ASSISTANT,
    "tool_call": Role.ASSISTANT,
    "observation": Role.TOOL,
    "tool": Role.TOOL,
    "tool_response": Role.TOOL,
    "function_response": Role.TOOL,
}
_CALL_ROLES = {"function_call", "tool_call"}


@register_format("sharegpt", detect=lambda row: row.get("conversations") is not None)
def read_sharegpt(row: JsonObject) -> Conversation:
    """One conversation; its schemas are in a column, or in the prompt of ToolACE.

    Raises:
        BadRowError: If an item or a call breaks the format.
    """
    messages = read_conversations(row)
    tools = tool_list(row.get("tools"))
    messages, tools = read_bracket_calls(messages, tools)
    return conversation(row, messages, tools=tools, columns=("conversations", "system", "tools"))


def read_conversations(row: JsonObject) -> list[Message]:
    """Messages in the column `conversations`; calls that follow each other are one turn.

    Raises:
        BadRowError: If an item breaks the format, or the column `system` differs from the system prompt among them.
    """
    messages = merge_pieces(_item(item) for item in message_list(row, "conversations"))
    system = text_of(row.get("system"), may_be_none=True)
    if not system:
        return messages
    if messages and messages[0].role is Role.SYSTEM:
        if messages[0].content != system:
            raise BadRowError(
                "two_systems", "the column system differs from the system prompt in conversations; keep one of them"
            )
        return messages
    return [Message(role=Role.SYSTEM, content=system), *messages]


def _item(obj: Json) -> Message:
    item = as_object(obj, "an item of conversations")
    if "from" in item:
        return role_piece(item["from"], item.get("value"))
    return read_message(item)


def role_piece(name: Json, value: Json) -> Message:
    """Message of one item, which may be a piece of an assistant turn.

    Args:
        name: Speaker of the item, such as "gpt".
        value: Text of the item; for a call, the call as an object or as text.

    Raises:
        BadRowError: If the speaker is unknown, or the text or the call cannot be read.
    """
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise BadRowError("unknown_role", f"an item is from {name!r}; known: {', '.join(sorted(_ROLES))}")
    if name not in _CALL_ROLES:
        return Message(role=role, content=text_of(value, may_be_none=role is Role.TOOL))
    if not isinstance(value, str):
        return Message(role=role, tool_calls=tuple(_calls(value)))
    start = end_of_thinking(value)
    thinking = value[: start + len("</think>")] if start else ""
    calls = _calls(parse_literal(value[len(thinking) :], reason="bad_tool_call", what=f"a {name}"))
    return Message(role=role, content=thinking, tool_calls=tuple(calls))


def _calls(value: Json) -> Iterable[ToolCall]:
    """Calls in a value that is one call or a list of parallel calls."""
    for item in value if isinstance(value, list) else [value]:
        call = as_object(item, "a call")
        yield parse_call(call.get("name"), call.get("arguments"), None)
