"""Helpers for readers of foreign rows: ids, outcomes, messages, schemas, and columns that may be JSON strings."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json, type_in_words
from verl_pivot.data.messages import parse_call, parse_message
from verl_pivot.data.trajectories import parse_expert_turns
from verl_pivot.formats.conversation import Conversation
from verl_pivot.types import Json, JsonObject, Message, Role

ID_COLUMNS = ("id", "trajectory_id", "traj_id", "uuid")
TASK_COLUMNS = ("task_id", "instance_id")
TRIAL_COLUMNS = ("trial", "run_id")
OUTCOME_COLUMNS = ("passed", "resolved", "reward")
MESSAGE_COLUMNS = ("messages", "traj", "trajectory")
COMMON_COLUMNS = (*ID_COLUMNS, *TASK_COLUMNS, *TRIAL_COLUMNS, *OUTCOME_COLUMNS)


def conversation(
    row: JsonObject, messages: Iterable[Message], *, tools: Json = None, columns: Iterable[str] = ()
) -> Conversation:
    """The conversation of these messages, with the ids, the outcome and the metadata from the columns of the row.

    Args:
        row: All columns of the row.
        messages: Messages that the reader found in the row.
        tools: Schemas that the reader found; None takes those of `--tools`.
        columns: Columns that the reader used beside COMMON_COLUMNS, `metadata` and `expert_turns`.

    Raises:
        BadRowError: If an id, an outcome, the expert's turns or the metadata cannot be read.
    """
    return Conversation(
        messages=tuple(messages),
        tools=tools,
        id=first_name(row, ID_COLUMNS),
        task=first_name(row, TASK_COLUMNS),
        trial=first_name(row, TRIAL_COLUMNS),
        passed=outcome(row, OUTCOME_COLUMNS),
        expert_turns="all" if (chosen := row.get("expert_turns")) is None else parse_expert_turns(chosen),
        metadata=decoded_object(row.get("metadata"), "metadata"),
        notes=present_columns(row, COMMON_COLUMNS),
        columns=frozenset({"metadata", "expert_turns", *COMMON_COLUMNS, *columns}),
    )


def read_message(obj: Json) -> Message:
    """A chat message in OpenAI's form, or in its older form with `function_call` and results of role `function`.

    Raises:
        BadRowError: If the object has neither form.
    """
    message = as_object(obj, "a message")
    if message.get("role") == "function":
        return parse_message({**message, "role": "tool"})
    called = message.get("function_call")
    if not called or message.get("role") != "assistant":
        return parse_message(message)
    if message.get("tool_calls"):
        raise BadRowError("bad_tool_call", "a message has function_call and tool_calls; keep one of them")
    call = as_object(called, "function_call")
    call_id = call.get("call_id")
    read = parse_call(
        call.get("name"), call.get("arguments"), call_id if isinstance(call_id, str) and call_id else None
    )
    return replace(parse_message({**message, "function_call": None}), tool_calls=(read,))


def message_list(row: JsonObject, key: str) -> list[Json]:
    """The list of messages in a column, which may be a JSON string.

    Raises:
        BadRowError: If the column does not hold a list.
    """
    return as_list(decoded(row.get(key), key), key)


def tool_list(value: Json) -> Json:
    """Schemas in a column: a list, its JSON string, or a list of JSON strings; blank text counts as no schemas.

    Raises:
        BadRowError: If a string is not JSON.
    """
    if isinstance(value, str):
        value = decode_json(value, reason="bad_tools", what="tools") if value.strip() else None
    if not isinstance(value, list):
        return value
    return [decode_json(tool, reason="bad_tools", what="a tool") if isinstance(tool, str) else tool for tool in value]


def has_items(value: Json, *keys: str) -> bool:
    """Whether the value is a list whose first item is an object with all of these keys."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return False
    return all(key in value[0] for key in keys)


def merge_pieces(pieces: Iterable[Message]) -> list[Message]:
    """Messages in which the pieces of one assistant turn (thinking, then text, then calls) are one message."""
    messages: list[Message] = []
    for piece in pieces:
        joined = join_pair(messages[-1], piece) if messages else None
        if joined is None:
            messages.append(piece)
        else:
            messages[-1] = joined
    return messages


def join_pair(first: Message, second: Message) -> Message | None:
    """Two pieces of one assistant turn as one message; None if they are no such pieces or their order would change."""
    if first.role is not Role.ASSISTANT or second.role is not Role.ASSISTANT:
        return None
    if second.reasoning is not None and (first.reasoning is not None or first.content or first.tool_calls):
        return None
    if second.content and (first.content or first.tool_calls):
        return None
    return Message(
        role=Role.ASSISTANT,
        content=first.content or second.content,
        reasoning=second.reasoning if first.reasoning is None else first.reasoning,
        tool_calls=(*first.tool_calls, *second.tool_calls),
    )


def with_first_content(messages: Sequence[Message], content: str) -> list[Message]:
    """The messages with another content in the first one; without the first one if that content is empty."""
    return [*([replace(messages[0], content=content)] if content else []), *messages[1:]]


def end_of_thinking(text: str) -> int:
    """Position of the `</think>` that ends the thinking of an assistant's text; 0 if it does not begin with thinking.

    Readers look for calls only behind it: a call that is mentioned in the thinking was not made.
    """
    return max(text.find("</think>"), 0) if text.lstrip().startswith("<think>") else 0


def decoded(value: Json, what: str) -> Json:
    """Value of a column that may be stored as a JSON string.

    Raises:
        BadRowError: If the value is text but not JSON; `what` names it in the message.
    """
    return decode_json(value, what=what) if isinstance(value, str) else value


def decoded_object(value: Json, what: str) -> JsonObject:
    """Object in a column that may be stored as a JSON string; an empty or missing value is an empty object.

    Raises:
        BadRowError: If the value is anything else; `what` names it in the message.
    """
    return as_object(decoded(value, what) or {}, what)


def first_name(row: JsonObject, keys: Sequence[str]) -> str | None:
    """Value of the first of these columns that has one, as text; None if none has.

    Raises:
        BadRowError: If the value is neither text nor a whole number.
    """
    return next((name for key in keys if (name := _name(row, key))), None)


def _name(row: JsonObject, key: str) -> str | None:
    value = row.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise BadRowError("bad_id", f"{key} must be text or a whole number, got {type_in_words(value)}")
    return None if value is None else str(value)


def outcome(row: JsonObject, keys: Sequence[str]) -> bool | None:
    """Whether all of these columns that have a value say that the run passed (true, or at least 1); None if none has.

    Raises:
        BadRowError: If a value is neither true, false nor a number.
    """
    return all_known(_passed(key, value) for key in keys if (value := row.get(key)) is not None)


def all_known(outcomes: Iterable[bool | None]) -> bool | None:
    """Whether all outcomes that are known are passes; None if none is known."""
    known = [passed for passed in outcomes if passed is not None]
    return all(known) if known else None


def _passed(key: str, value: Json) -> bool:
    if not isinstance(value, bool | int | float):
        raise BadRowError("bad_outcome", f"{key} must be true, false or a number, got {type_in_words(value)}")
    return value >= 1


def binary_outcome(row: JsonObject, keys: Sequence[str]) -> bool | None:
    """Whether all of these columns that have a value say true or 1; None if none has a value.

    Raises:
        BadRowError: If a number is neither 1 nor 0: some data sets publish -1 without saying what it means.
    """
    for key in keys:
        value = row.get(key)
        if isinstance(value, int | float) and value not in (0, 1):
            raise BadRowError("bad_outcome", f"{key} must be true, false, 1 or 0, got {value}")
    return outcome(row, keys)


def present_columns(row: JsonObject, keys: Iterable[str]) -> JsonObject:
    """Columns of these names that have a value, with their values."""
    return {key: row[key] for key in keys if row.get(key) is not None}


def messages_column(row: JsonObject) -> str | None:
    """Name of the column that holds the messages; None if the row has none of MESSAGE_COLUMNS."""
    return next((key for key in MESSAGE_COLUMNS if row.get(key) is not None), None)
