"""Format `toucan`: Toucan-1.5M, whose messages and schemas are JSON strings, in both of its notations for calls."""

from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_object, decode_json
from verl_pivot.formats.columns import (
    IDS,
    NAMES,
    OUTCOMES,
    TASKS,
    TRIALS,
    first_name,
    folded,
    message_list,
    noted,
    outcome,
    read_message,
    tool_list,
)
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.hermes import Prompt, cut_tools
from verl_pivot.formats.registry import register_format
from verl_pivot.formats.sharegpt import role_piece
from verl_pivot.types import Json, JsonObject, Message, Role

_KIMI_BEGIN, _KIMI_END = "<|im_system|>tool_declare<|im_middle|>", "<|im_end|>"
_ROLES = ("tool_call", "tool_response")
_QUESTION = ("subset_name", "question", "target_tools")


@register_format(
    "toucan",
    detect=lambda row: row.get("messages") is not None and ("available_tools" in row or "target_tools" in row),
)
def read_toucan(row: JsonObject) -> Conversation:
    """Calls are Qwen-Agent's `function_call` with role `function`, or of role `tool_call` with `tool_response`.

    Its `uuid` names the question: trajectories of several models share it. Its ratings by a model are no outcome.

    Raises:
        BadRowError: If a message or a call breaks the format.
    """
    messages = folded(_piece(item) for item in message_list(row, "messages"))
    tools = tool_list(row.get("available_tools") or row.get("tools"))
    if messages and messages[0].role is Role.SYSTEM:
        prompt = _cut_tools(messages[0].content)
        messages = [*([replace(messages[0], content=prompt.text)] if prompt.text else []), *messages[1:]]
        tools = prompt.tools if tools is None else tools
    return Conversation(
        messages=tuple(messages),
        tools=tools,
        id=first_name(row, [name for name in IDS if name != "uuid"]),
        task=first_name(row, [*TASKS, "uuid"]),
        trial=first_name(row, TRIALS),
        passed=outcome(row, OUTCOMES),
        notes=noted(row, (*NAMES, *_QUESTION)),
        columns=frozenset({"messages", "available_tools", "tools", *NAMES, *_QUESTION}),
    )


def _piece(obj: Json) -> Message:
    message = as_object(obj, "a message")
    if message.get("role") in _ROLES:
        return role_piece(message["role"], message.get("content"))
    return read_message(message)


def _cut_tools(text: str) -> Prompt:
    """A system prompt without its schemas, which are Kimi's or Qwen's, as the chat template of the model wrote them."""
    if not text.startswith(_KIMI_BEGIN):
        return cut_tools(text)
    listed, end, rest = text.removeprefix(_KIMI_BEGIN).partition(_KIMI_END)
    if not end:
        raise BadRowError("unclear_tools", f"{_KIMI_BEGIN} without {_KIMI_END} in the system prompt")
    tools = decode_json(listed, reason="unclear_tools", what="tool_declare")
    return Prompt(rest, tools if isinstance(tools, list) else [tools])
