"""Format `played`: conversations of `verl-pivot play`, with their outcome and the schemas of their tools."""

from verl_pivot.data.json_values import BadRowError
from verl_pivot.formats.columns import conversation, message_list, read_message
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.registry import register_format
from verl_pivot.types import JsonObject

_RECORD_COLUMNS = ("rollout", "verdict", "player")


def _looks_played(row: JsonObject) -> bool:
    return "messages" in row and all(key in row for key in _RECORD_COLUMNS)


@register_format("played", detect=_looks_played)
def read_played(row: JsonObject) -> Conversation:
    """One conversation as `verl-pivot play --out` writes it; turns that stayed text are not searched for calls.

    Raises:
        BadRowError: If a message breaks the format, or no turn is an action.
    """
    if row.get("expert_turns") == []:
        detail = "each turn of the player was cut off, has a call that cannot be read, or is neither call nor answer"
        raise BadRowError("no_action", detail)
    messages = (read_message(item) for item in message_list(row, "messages"))
    return conversation(row, messages, tools=row.get("tools"), columns=("messages", "tools", *_RECORD_COLUMNS))
