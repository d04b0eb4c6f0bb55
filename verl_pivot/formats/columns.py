"""What readers share: pieces of one assistant turn joined, names, outcomes and columns that may be JSON strings."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json, type_in_words
from verl_pivot.data.messages import parse_call, parse_message
from verl_pivot.formats.conversation import Conversation
from verl_pivot.types import Json, JsonObject, Message, Role

IDS = ("id", "trajectory_id", "traj_id", "uuid")
TASKS = ("task_id", "instance_id")
TRIALS = ("trial", "run_id")
OUTCOMES = ("passed", "resolved", "reward")
NAMES = (*IDS, *TASKS, *TRIALS, *OUTCOMES)


def conversation(
    row: JsonObject, messages: Iterable[Message], *, tools: Json = None, columns: Iterable[str] = ()
) -> Conversation:
    """Messages with the names, the outcome and the metadata that the columns of their row say.

    Args:
        row: All of its columns.
        messages: What its reader found.
        tools: Schemas, or None for those of `--tools`.
        columns: Those that the reader has used beside the names, `metadata` and `expert_turns`.

    Raises:
        BadRowError: If a name, an outcome or the metadata cannot be read.
    """
    return Conversation(
        messages=tuple(messages),
        tools=tools,
        id=first_name(row, IDS),
        task=first_name(row, TASKS),
        trial=first_name(row, TRIALS),
        passed=outcome(row, OUTCOMES),
        expert_turns="last" if row.get("expert_turns") == "last" else "all",
        metadata=decoded_object(row.get("metadata"), "metadata"),
        notes=noted(row, NAMES),
        columns=frozenset({"metadata", "expert_turns", *NAMES, *columns}),
    )


def read_message(obj: Json) -> Message:
    """A chat message of OpenAI's, or of its older form: `function_call`, answered by role `function`.

    Raises:
        BadRowError: If it is neither.
    """
    message = as_object(obj, "a message")
    if message.get("role") == "function":
        return parse_message({**message, "role": "tool"})
    called = message.get("function_call")
    if not called or message.get("role") != "assistant":
        return parse_message(message)
    if message.get("tool_calls"):
        raise BadRowError("bad_tool_call", "a message with function_call and tool_calls; keep one of them")
    call = as_object(called, "function_call")
    call_id = call.get("call_id")
    read = parse_call(
        call.get("name"), call.get("arguments"), call_id if isinstance(call_id, str) and call_id else None
    )
    return replace(parse_message({**message, "function_call": None}), tool_calls=(read,))


def message_list(row: JsonObject, key: str) -> list[Json]:
    """The list of messages in a column, which may be a JSON string.

    Raises:
        BadRowError: If it is no list.
    """
    return as_list(decoded(row.get(key), key), key)


def tool_list(value: Json) -> Json:
    """Schemas of a column: a list, its JSON string, or a list of JSON strings; text without any is none.

    Raises:
        BadRowError: If a string is no JSON.
    """
    if isinstance(value, str):
        value = decode_json(value, reason="bad_tools", what="tools") if value.strip() else None
    if not isinstance(value, list):
        return value
    return [decode_json(tool, reason="bad_tools", what="a tool") if isinstance(tool, str) else tool for tool in value]


def has_items(value: Json, *keys: str) -> bool:
    """Whether it is a list whose first item is an object with all of these keys."""
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return False
    return all(key in value[0] for key in keys)


def folded(pieces: Iterable[Message]) -> list[Message]:
    """Neighbouring pieces of one response joined: its thinking, then its text, then its calls."""
    messages: list[Message] = []
    for piece in pieces:
        joined = join_pieces(messages[-1], piece) if messages else None
        if joined is None:
            messages.append(piece)
        else:
            messages[-1] = joined
    return messages


def join_pieces(first: Message, second: Message) -> Message | None:
    """Two pieces of one assistant turn as one message, or None where that would change their order."""
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


def after_thinking(text: str) -> int:
    """Where an assistant's text begins that is no thinking: what that speaks of is not done."""
    return max(text.find("</think>"), 0) if text.lstrip().startswith("<think>") else 0


def decoded(value: Json, what: str) -> Json:
    """A column that may be stored as a JSON string.

    Raises:
        BadRowError: If it is text and no JSON.
    """
    return decode_json(value, what=what) if isinstance(value, str) else value


def decoded_object(value: Json, what: str) -> JsonObject:
    """An object, or its JSON string; nothing is an empty one.

    Raises:
        BadRowError: If it is anything else.
    """
    return as_object(decoded(value, what) or {}, what)


def first_name(row: JsonObject, keys: Sequence[str]) -> str | None:
    """The first of these columns that has a value, as text.

    Raises:
        BadRowError: If that is neither text nor a whole number.
    """
    return next((name for key in keys if (name := _name(row, key))), None)


def _name(row: JsonObject, key: str) -> str | None:
    value = row.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise BadRowError("bad_id", f"{key} must be text or a whole number, got {type_in_words(value)}")
    return None if value is None else str(value)


def outcome(row: JsonObject, keys: Sequence[str]) -> bool | None:
    """Whether every outcome column that the row has says passed; None without any.

    Raises:
        BadRowError: If one is neither true, false nor a number.
    """
    outcomes = [_passed(key, value) for key in keys if (value := row.get(key)) is not None]
    return all(outcomes) if outcomes else None


def _passed(key: str, value: Json) -> bool:
    if not isinstance(value, bool | int | float):
        raise BadRowError("bad_outcome", f"{key} must be true, false or a number, got {type_in_words(value)}")
    return value >= 1


def resolved(row: JsonObject, keys: Sequence[str]) -> bool | None:
    """Whether every such column says true; None without any.

    Raises:
        BadRowError: If one says neither true nor false, nor 1 or 0: some publish -1, and not what it means.
    """
    for key in keys:
        value = row.get(key)
        if isinstance(value, int | float) and value not in (0, 1):
            raise BadRowError("bad_outcome", f"{key} must be true, false, 1 or 0, got {value}")
    return outcome(row, keys)


def noted(row: JsonObject, keys: Iterable[str]) -> JsonObject:
    """The columns of these names that have a value."""
    return {key: row[key] for key in keys if row.get(key) is not None}


MESSAGES = ("messages", "traj", "trajectory")


def messages_column(row: JsonObject) -> str | None:
    """Name of the column that holds the messages; None where there is none."""
    return next((key for key in MESSAGES if row.get(key) is not None), None)
