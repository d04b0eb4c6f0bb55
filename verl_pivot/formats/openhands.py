"""Format `openhands`: OpenHands trajectories as published, OpenHands' logged completions, and its output.jsonl."""

from collections.abc import Sequence
from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_list
from verl_pivot.data.messages import text_if_any
from verl_pivot.formats.columns import (
    MESSAGE_COLUMNS,
    all_known,
    binary_outcome,
    conversation,
    has_items,
    message_list,
    messages_column,
    read_message,
    tool_list,
)
from verl_pivot.formats.conversation import Conversation
from verl_pivot.formats.function_text import read_text_calls, teaches_text_calls
from verl_pivot.formats.openhands_events import message_of, read_events
from verl_pivot.formats.registry import register_format
from verl_pivot.types import Json, JsonObject, Message

_BINARY = ("passed", "resolved")
"""Columns of the outcome that are refused unless they are true, false, 1 or 0."""


def _looks_like_openhands(row: JsonObject) -> bool:
    history = row.get("history")
    if has_items(history, "action") or has_items(history, "observation"):
        return True
    key = messages_column(row)
    if key is None or "traj_id" in row:  # traj_id marks rows of SWE-smith, which `swe-agent` reads
        return False
    if ("instance_id" in row and "resolved" in row) or _is_completion(row):
        return True
    return _has_teaching_prompt(row[key])


def _is_completion(row: JsonObject) -> bool:
    response = row.get("response")
    return isinstance(response, dict) and "choices" in response


def _has_teaching_prompt(messages: Json) -> bool:
    if isinstance(messages, str):
        return teaches_text_calls(messages)
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and teaches_text_calls(text_if_any(first.get("content")))


@register_format("openhands", detect=_looks_like_openhands)
def read_openhands(row: JsonObject) -> Conversation:
    """One conversation: messages with `resolved`, a logged completion with its `response`, or a `history` of events.

    Raises:
        BadRowError: If a message, a call in text or an event cannot be read exactly.
    """
    if row.get("history") is not None:
        return _from_history(row)
    if _is_completion(row):
        return _from_completion(row)
    key = messages_column(row)
    if key is None:
        raise BadRowError(
            "no_messages",
            f"a row needs history, response or one of {', '.join(MESSAGE_COLUMNS)}; "
            f"it has {', '.join(row) or 'no keys'}",
        )
    messages = [read_message(item) for item in message_list(row, key)]
    found = _conversation(row, messages, tool_list(row.get("tools")), (key, "tools"))
    return replace(found, passed=all_known([found.passed, binary_outcome(row, _BINARY)]))


def _conversation(row: JsonObject, messages: Sequence[Message], tools: Json, columns: Sequence[str]) -> Conversation:
    if messages and teaches_text_calls(messages[0].content):
        messages, tools = read_text_calls(messages, tools)
    return conversation(row, messages, tools=tools, columns=columns)


def _from_completion(row: JsonObject) -> Conversation:
    """One action with exactly the messages that the model saw.

    For models without function calling, OpenHands logs the structured calls as `fncall_messages` beside the text.
    """
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
    passed = all_known([found.passed, binary_outcome(row, _BINARY), _passed_in_reports(row)])
    # The column metadata holds the configuration of the run, which no verifier needs.
    return replace(found, metadata={}, passed=passed, columns=found.columns - {"metadata"})


def _passed_in_reports(row: JsonObject) -> bool | None:
    """Outcome in the evaluation's reports: the column `report`, or `report` in the column `test_result`."""
    test_result = row.get("test_result")
    nested = test_result.get("report") if isinstance(test_result, dict) else None
    reports = [report for report in (row.get("report"), nested) if isinstance(report, dict)]
    return all_known(binary_outcome(report, ("resolved",)) for report in reports)
