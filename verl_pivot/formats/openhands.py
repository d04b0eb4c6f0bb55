"""Format `openhands`: published OpenHands trajectories, its logged completions, and its output.jsonl."""

from collections.abc import Sequence
from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_list
from verl_pivot.formats.columns import (
    conversation,
    has_items,
    message_list,
    messages_column,
    read_message,
    resolved,
    tool_list,
)
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.function_text import is_prompt, read_text_calls
from verl_pivot.formats.openhands_events import message_of, read_events
from verl_pivot.formats.registry import register_format
from verl_pivot.types import Json, JsonObject, Message


def _looks_like_openhands(row: JsonObject) -> bool:
    history = row.get("history")
    if has_items(history, "action") or has_items(history, "observation"):
        return True
    key = messages_column(row)
    if key is None or "traj_id" in row:  # SWE-smith's
        return False
    if ("instance_id" in row and "resolved" in row) or _is_completion(row):
        return True
    return _teaches_text_calls(row[key])


def _is_completion(row: JsonObject) -> bool:
    response = row.get("response")
    return isinstance(response, dict) and "choices" in response


def _teaches_text_calls(messages: Json) -> bool:
    if isinstance(messages, str):
        return is_prompt(messages)
    first = messages[0] if isinstance(messages, list) and messages else None
    content = first.get("content") if isinstance(first, dict) else None
    return isinstance(content, str) and is_prompt(content)


@register_format("openhands", detect=_looks_like_openhands)
def read_openhands(row: JsonObject) -> Conversation:
    """`trajectory` or `messages` with `resolved`, a completion with its `response`, or a `history` of events.

    Raises:
        BadRowError: If a message, a call in text or an event cannot be read exactly.
    """
    if row.get("history") is not None:
        return _from_history(row)
    if _is_completion(row):
        return _from_completion(row)
    key = messages_column(row)
    if key is None:
        raise BadRowError("no_messages", f"the row has {', '.join(row) or 'no keys'}")
    messages = [read_message(item) for item in message_list(row, key)]
    found = _conversation(row, messages, tool_list(row.get("tools")), (key, "tools"))
    return replace(found, passed=resolved(row, ("passed", "resolved")))


def _conversation(row: JsonObject, messages: Sequence[Message], tools: Json, columns: Sequence[str]) -> Conversation:
    if messages and is_prompt(messages[0].content):
        messages, tools = read_text_calls(messages, tools)
    return conversation(row, messages, tools=tools, columns=columns)


def _from_completion(row: JsonObject) -> Conversation:
    """One action with exactly what the model saw; a model without calls of its own has them beside the text."""
    prefix = "fncall_" if row.get("fncall_messages") is not None else ""
    state = [read_message(item) for item in message_list(row, f"{prefix}messages")]
    action = read_message(message_of(row.get(f"{prefix}response")))
    options = row.get("kwargs")
    tools = row.get("tools") if not isinstance(options, dict) else options.get("tools")
    columns = ("messages", "response", "fncall_messages", "fncall_response", "kwargs", "tools")
    found = _conversation(row, [*state, action], tool_list(tools), columns)
    return replace(found, expert_turns="last")


def _from_history(row: JsonObject) -> Conversation:
    events = read_events(as_list(row.get("history"), "history"))
    found = conversation(
        row, events.messages, tools=tool_list(events.tools), columns=("history", "test_result", "report")
    )
    # The run's metadata are its configuration, which no verifier needs.
    return replace(found, metadata={}, passed=_report(row), columns=found.columns - {"metadata"})


def _report(row: JsonObject) -> bool | None:
    """What the evaluation wrote, into the run's output or beside it."""
    test_result = row.get("test_result")
    nested = test_result.get("report") if isinstance(test_result, dict) else None
    reports = [report for report in (row.get("report"), nested) if isinstance(report, dict)]
    found = [passed for report in reports if (passed := resolved(report, ("resolved",))) is not None]
    return all(found) if found else None
