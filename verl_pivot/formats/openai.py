"""Format `openai`: a list of chat messages with `tool_calls`, as most logs have them, tau-bench's among them."""

from verl_pivot.data.messages import parse_message
from verl_pivot.data.storage import BadRowError, as_list
from verl_pivot.formats.pieces import decoded, decoded_object, first_name, noted, outcome
from verl_pivot.formats.registry import Conversation, register_format
from verl_pivot.types import JsonObject

_MESSAGES = ("messages", "traj", "trajectory")
_IDS = ("id", "trajectory_id", "uuid")
_TASKS = ("task_id", "instance_id")
_OUTCOMES = ("passed", "resolved", "reward")


@register_format("openai", detect=lambda row: any(row.get(key) is not None for key in _MESSAGES))
def read_openai(row: JsonObject) -> Conversation:
    """One conversation under `messages`, `traj` or `trajectory`; the list may be a JSON string.

    Raises:
        BadRowError: If there is no such list, or a message breaks the format.
    """
    key = next((key for key in _MESSAGES if row.get(key) is not None), None)
    if key is None:
        raise BadRowError("no_messages", f"none of {', '.join(_MESSAGES)}; the row has {', '.join(row) or 'no keys'}")
    names = (*_IDS, *_TASKS, "trial", *_OUTCOMES)
    return Conversation(
        messages=tuple(parse_message(item) for item in as_list(decoded(row[key], key), key)),
        tools=row.get("tools"),
        id=first_name(row, _IDS),
        task=first_name(row, _TASKS),
        trial=first_name(row, ("trial",)),
        passed=outcome(row, _OUTCOMES),
        expert_turns="last" if row.get("expert_turns") == "last" else "all",
        metadata=decoded_object(row.get("metadata"), "metadata"),
        notes=noted(row, names),
        columns=frozenset({key, "tools", "metadata", "expert_turns", *names}),
    )
