"""Format `swe-agent`: SWE-agent's .traj files, and the trajectories that nebius and SWE-smith have published."""

import re
from collections.abc import Sequence
from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.messages import parse_message, text_of
from verl_pivot.formats.columns import (
    COMMON_COLUMNS,
    all_known,
    binary_outcome,
    conversation,
    has_items,
    message_list,
    present_columns,
    tool_list,
)
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.function_text import read_text_calls, teaches_text_calls
from verl_pivot.formats.registry import register_format
from verl_pivot.types import JsonObject, Message, Role

_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "ai": Role.ASSISTANT}
_RUN_COLUMNS = ("exit_status", "model_name", "model", "environment")
# Words of SWE-agent itself, in an assistant message, for a run that it had to end.
_GAVE_UP = re.compile(r"\s*exit(ing|ed)? due to ", re.IGNORECASE)


def _looks_like_swe_agent(row: JsonObject) -> bool:
    if has_items(row.get("history"), "role"):
        return True
    if has_items(row.get("trajectory"), "role", "text"):
        return True
    return row.get("messages") is not None and "traj_id" in row


@register_format("swe-agent", detect=_looks_like_swe_agent)
def read_swe_agent(row: JsonObject) -> Conversation:
    """The `history` of a .traj file, a `trajectory` of role and text, or SWE-smith's `messages`.

    An action that the model wrote in a fence of ``` stays text. A last turn in which SWE-agent says why it had to
    end the run is left out, since the model did not write it.

    Raises:
        BadRowError: If a message breaks the format, belongs to a demonstration, or was written by another agent than
            the other messages.
    """
    key = next((key for key in ("history", "messages", "trajectory") if row.get(key) is not None), "history")
    items = [as_object(item, f"an item of {key}") for item in message_list(row, key)]
    messages = [_nebius(item) if "text" in item else _history(item) for item in items]
    if len({item["agent"] for item in items if isinstance(item.get("agent"), str)}) > 1:
        raise BadRowError(
            "several_agents", "the history holds messages of several agents; write one row for each agent"
        )
    messages, tools = _without_exit_turn(messages), tool_list(row.get("tools"))
    if messages and teaches_text_calls(messages[0].content):
        messages, tools = read_text_calls(messages, tools)
    found = conversation(row, messages, tools=tools, columns=(key, "tools", "target", "info", *_RUN_COLUMNS))
    info = row.get("info")
    exit_status = present_columns(info, ("exit_status",)) if isinstance(info, dict) else {}
    # Only tests decide the outcome: a run that submitted a patch may still have failed them.
    passed = all_known([found.passed, binary_outcome(row, ("target", "resolved", "passed"))])
    notes = present_columns(row, (*COMMON_COLUMNS, "target", *_RUN_COLUMNS)) | exit_status
    return replace(found, passed=passed, notes=notes)


def _nebius(item: JsonObject) -> Message:
    name = item.get("role")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise BadRowError("unknown_role", f"an item has role {name!r}; known: {', '.join(_ROLES)}")
    text = item.get("text")
    return Message(role=role, content=text_of(item.get("system_prompt") if text is None else text, may_be_none=False))


def _history(item: JsonObject) -> Message:
    ids = as_list(item.get("tool_call_ids"), "tool_call_ids")
    if len(ids) > 1:
        raise BadRowError("unclear_response", f"one observation answers {len(ids)} calls; each call needs its own")
    if item.get("is_demo") and item.get("role") != "user":
        raise BadRowError("demonstration", "the history holds turns of a demonstration; remove them")
    thinking = _thinking(item)
    message = {**item, "tool_call_id": ids[0]} if ids else item
    return parse_message({**message, "reasoning_content": thinking} if thinking else message)


def _thinking(item: JsonObject) -> str | None:
    blocks = [as_object(block, "a thinking block") for block in as_list(item.get("thinking_blocks"), "thinking_blocks")]
    texts = [block.get("thinking") for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise BadRowError("encrypted_reasoning", "a thinking block has no text; remove it")
    return "\n".join(map(str, texts)) or None


def _without_exit_turn(messages: Sequence[Message]) -> list[Message]:
    turns = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if turns and not messages[turns[-1]].tool_calls and _GAVE_UP.match(messages[turns[-1]].content):
        return list(messages[: turns[-1]])
    return list(messages)
