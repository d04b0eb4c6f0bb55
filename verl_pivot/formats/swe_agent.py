"""Format `swe-agent`: .traj files, nebius' SWE-agent trajectories, and SWE-smith's."""

import re
from collections.abc import Sequence
from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_list, as_object
from verl_pivot.data.messages import parse_message, text_of
from verl_pivot.formats.columns import NAMES, conversation, has_items, message_list, noted, resolved, tool_list
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.function_text import is_prompt, read_text_calls
from verl_pivot.formats.registry import register_format
from verl_pivot.types import JsonObject, Message, Role

_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "ai": Role.ASSISTANT}
_RUN = ("exit_status", "model_name", "model", "environment")
# SWE-agent's own words for a run that it had to end, written where the model would have spoken.
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

    Actions in fences of ``` stay the text that they are. A last turn in which SWE-agent says why it had to end
    the run is left out: it is not the model's.

    Raises:
        BadRowError: If a message breaks the format, is of a demonstration, or of another agent than the rest.
    """
    key = next((key for key in ("history", "messages", "trajectory") if row.get(key) is not None), "history")
    items = [as_object(item, f"an item of {key}") for item in message_list(row, key)]
    messages = [_nebius(item) if "text" in item else _history(item) for item in items]
    if len({item["agent"] for item in items if isinstance(item.get("agent"), str)}) > 1:
        raise BadRowError("several_agents", "the history is of several agents; split it")
    messages, tools = _without_end(messages), tool_list(row.get("tools"))
    if messages and is_prompt(messages[0].content):
        messages, tools = read_text_calls(messages, tools)
    found = conversation(row, messages, tools=tools, columns=(key, "tools", "target", "info", *_RUN))
    info = row.get("info")
    ended = noted(info, ("exit_status",)) if isinstance(info, dict) else {}
    passed = resolved(row, ("target", "resolved", "passed"))  # of its tests: a run that submitted need not have
    return replace(found, passed=passed, notes=noted(row, (*NAMES, "target", *_RUN)) | ended)


def _nebius(item: JsonObject) -> Message:
    name = item.get("role")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise BadRowError("unknown_role", f"role {name!r}; known: {', '.join(_ROLES)}")
    text = item.get("text")
    return Message(role=role, content=text_of(item.get("system_prompt") if text is None else text, may_be_none=False))


def _history(item: JsonObject) -> Message:
    ids = as_list(item.get("tool_call_ids"), "tool_call_ids")
    if len(ids) > 1:
        raise BadRowError("unclear_response", f"one observation for {len(ids)} calls")
    if item.get("is_demo") and item.get("role") != "user":
        raise BadRowError("demonstration", "turns of a demonstration stand among those of the run; remove them")
    thinking = _thinking(item)
    message = {**item, "tool_call_id": ids[0]} if ids else item
    return parse_message({**message, "reasoning_content": thinking} if thinking else message)


def _thinking(item: JsonObject) -> str | None:
    blocks = [as_object(block, "a thinking block") for block in as_list(item.get("thinking_blocks"), "thinking_blocks")]
    texts = [block.get("thinking") for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise BadRowError("encrypted_reasoning", "a thinking block has no text; remove it")
    return "\n".join(map(str, texts)) or None


def _without_end(messages: Sequence[Message]) -> list[Message]:
    turns = [number for number, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if turns and not messages[turns[-1]].tool_calls and _GAVE_UP.match(messages[turns[-1]].content):
        return list(messages[: turns[-1]])
    return list(messages)
