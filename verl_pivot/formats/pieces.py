"""What readers share: pieces of one assistant turn joined, names, outcomes and columns that may be JSON strings."""

from collections.abc import Iterable, Sequence

from verl_pivot.data.storage import BadRowError, as_object, decode_json, kind_of
from verl_pivot.types import Json, JsonObject, Message, Role


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
        raise BadRowError("bad_id", f"{key} must be text or a whole number, got {kind_of(value)}")
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
        raise BadRowError("bad_outcome", f"{key} must be true, false or a number, got {kind_of(value)}")
    return value >= 1


def noted(row: JsonObject, keys: Iterable[str]) -> JsonObject:
    """Those of the columns that have a value."""
    return {key: row[key] for key in keys if row.get(key) is not None}
