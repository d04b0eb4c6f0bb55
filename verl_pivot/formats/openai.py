"""Format `openai`: a list of chat messages with `tool_calls`, as most logs have them, such as those of tau-bench."""

from verl_pivot.data.json_values import BadRowError
from verl_pivot.formats.columns import (
    MESSAGE_COLUMNS,
    conversation,
    message_list,
    messages_column,
    read_message,
    tool_list,
)
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.types import JsonObject


@register_format("openai", detect=lambda row: messages_column(row) is not None)
def read_openai(row: JsonObject) -> Conversation:
    """One conversation in the column `messages`, `traj` or `trajectory`; the list may be a JSON string.

    Raises:
        BadRowError: If the row has none of these columns, or a message breaks the format.
    """
    key = messages_column(row)
    if key is None:
        raise BadRowError(
            "no_messages", f"a row needs one of {', '.join(MESSAGE_COLUMNS)}; it has {', '.join(row) or 'no keys'}"
        )
    messages = (read_message(item) for item in message_list(row, key))
    given = row.get("functions") if row.get("tools") is None else row.get("tools")
    return conversation(row, messages, tools=tool_list(given), columns=(key, "tools", "functions"))
