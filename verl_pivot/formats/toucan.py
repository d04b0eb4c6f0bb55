"""Format `toucan`: rows of Toucan-1.5M, whose messages and schemas are JSON strings, in both notations for calls."""

from verl_pivot.data.json_values import BadRowError, as_object, decode_json
from verl_pivot.formats.columns import (
    COMMON_COLUMNS,
    ID_COLUMNS,
    OUTCOME_COLUMNS,
    TASK_COLUMNS,
    TRIAL_COLUMNS,
    first_name,
    merge_pieces,
    message_list,
    outcome,
    present_columns,
    read_message,
    tool_list,
    with_first_content,
)
from verl_pivot.formats.conversation import Conversation, PromptAndTools
from verl_pivot.formats.hermes import cut_tools
from verl_pivot.formats.registry import register_format
from verl_pivot.formats.sharegpt import role_piece
from verl_pivot.types import Json, JsonObject, Message, Role

_KIMI_BEGIN, _KIMI_END = "<|im_system|>tool_declare<|im_middle|>", "<|im_end|>"
_SFT_ROLES = ("tool_call", "tool_response")
_QUESTION_COLUMNS = ("subset_name", "question", "target_tools")


@register_format(
    "toucan",
    detect=lambda row: row.get("messages") is not None and ("available_tools" in row or "target_tools" in row),
)
def read_toucan(row: JsonObject) -> Conversation:
    """One conversation; calls are a `function_call` with results of role `function`, or of role `tool_call`.

    The `uuid` is read as the id of the task, since trajectories of several models share it. Ratings by a model are
    not read as an outcome.

    Raises:
        BadRowError: If a message or a call breaks the format.
    """
    messages = merge_pieces(_piece(item) for item in message_list(row, "messages"))
    tools = tool_list(row.get("available_tools") or row.get("tools"))
    if messages and messages[0].role is Role.SYSTEM:
        prompt = _cut_tools(messages[0].content)
        messages = with_first_content(messages, prompt.text)
        tools = prompt.tools if tools is None else tools
    return Conversation(
        messages=tuple(messages),
        tools=tools,
        id=first_name(row, [name for name in ID_COLUMNS if name != "uuid"]),
        task=first_name(row, [*TASK_COLUMNS, "uuid"]),
        trial=first_name(row, TRIAL_COLUMNS),
        passed=outcome(row, OUTCOME_COLUMNS),
        notes=present_columns(row, (*COMMON_COLUMNS, *_QUESTION_COLUMNS)),
        columns=frozenset({"messages", "available_tools", "tools", *COMMON_COLUMNS, *_QUESTION_COLUMNS}),
    )


def _piece(obj: Json) -> Message:
    message = as_object(obj, "a message")
    role = message.get("role")
    if isinstance(role, str) and role in _SFT_ROLES:
        return role_piece(role, message.get("content"))
    return read_message(message)


def _cut_tools(text: str) -> PromptAndTools:
    """A system prompt without its schemas, which the chat template of Kimi or Qwen wrote into it."""
    if not text.startswith(_KIMI_BEGIN):
        return cut_tools(text)
    listed, end, rest = text.removeprefix(_KIMI_BEGIN).partition(_KIMI_END)
    if not end:
        raise BadRowError("unclear_tools", f"the system prompt has {_KIMI_BEGIN} without {_KIMI_END} after it")
    tools = decode_json(listed, reason="unclear_tools", what="tool_declare")
    return PromptAndTools(rest, tools if isinstance(tools, list) else [tools])
