"""Chat messages as JSON in OpenAI's form <-> Message, and the checks of a whole conversation."""

from collections.abc import Sequence

from verl_pivot.data.json_values import HALF_PAIR, BadRowError, as_list, as_object, decode_json, type_in_words
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_TEXT_PARTS = ("text", "input_text", "output_text")
_ROLES = {**{role.value: role for role in Role}, "developer": Role.SYSTEM}
# Parts of an action that Message cannot hold: dropping them would change what the expert did.
_UNSUPPORTED = ("function_call", "audio", "refusal")


def parse_message(obj: Json) -> Message:
    """Parse one message in OpenAI's form; the inverse of `Message.as_dict`.

    Arguments may be an object or its JSON string, content may be null or text parts, and
    `reasoning` is another name of `reasoning_content`.

    Raises:
        BadRowError: If the value is not such a message.
    """
    message = as_object(obj, "a message")
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise BadRowError(
            "unknown_role", f"a message has role {message.get('role')!r}; known: {', '.join(sorted(_ROLES))}"
        )
    if unsupported := [key for key in _UNSUPPORTED if message.get(key)]:
        raise BadRowError("unsupported_content", f"a message has {unsupported[0]!r}; only text and calls are read")
    reasoning, calls = _reasoning(message), as_list(message.get("tool_calls"), "tool_calls")
    if role is not Role.ASSISTANT and (calls or reasoning is not None):
        raise BadRowError(
            "unknown_role", f"only an assistant message has tool calls or reasoning, got role {role.value!r}"
        )
    return Message(
        role=role,
        content=text_of(message.get("content"), may_be_none=role in (Role.ASSISTANT, Role.TOOL)),
        reasoning=reasoning,
        tool_calls=tuple(_parse_tool_call(call) for call in calls),
        tool_call_id=_optional_text(message, "tool_call_id"),
        name=_optional_text(message, "name"),
    )


def _reasoning(message: JsonObject) -> str | None:
    given = {text for key in ("reasoning_content", "reasoning") if (text := _optional_text(message, key)) is not None}
    if len(given) > 1:
        raise BadRowError("two_reasonings", "reasoning and reasoning_content differ; keep one of them")
    return given.pop() if given else None


def _parse_tool_call(obj: Json) -> ToolCall:
    call = as_object(obj, "a tool call")
    if call.get("type") not in (None, "function"):
        raise BadRowError("bad_tool_call", f"a tool call has type {call['type']!r}; only 'function' is read")
    function = as_object(call.get("function"), "tool_call.function")
    return parse_call(function.get("name"), function.get("arguments"), _optional_text(call, "id"))


def parse_call(name: Json, arguments: Json, call_id: str | None) -> ToolCall:
    """Make a call from its parts; the arguments are an object or its JSON string.

    Raises:
        BadRowError: If the name is not text that a file can hold, or the arguments are not an object.
    """
    if not isinstance(name, str) or not name:
        raise BadRowError("bad_tool_call", f"a tool call needs a name, got {name!r}")
    if HALF_PAIR.search(name):
        raise BadRowError("bad_tool_call", f"the name of a tool call has half of a surrogate pair: {name!r}")
    if isinstance(arguments, str):
        arguments = decode_json(arguments, reason="bad_arguments", what=f"arguments of {name}")
    if not isinstance(arguments, dict):
        raise BadRowError("bad_arguments", f"arguments of {name} must be a JSON object, got {type_in_words(arguments)}")
    return ToolCall(name=name, arguments=arguments, id=call_id)


def text_if_any(content: Json) -> str:
    """The text of a message as `text_of` reads it, to detect a format; "" for anything that it refuses."""
    try:
        return text_of(content, may_be_none=True)
    except BadRowError:
        return ""


def text_of(content: Json, *, may_be_none: bool) -> str:
    """The text of a message: a string, or text parts joined.

    Args:
        content: The message's `content`.
        may_be_none: Whether null counts as empty text.

    Raises:
        BadRowError: If the content or one of its parts is not text.
    """
    if content is None and may_be_none:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRowError("not_text", f"content must be text, got {type_in_words(content)}")
    parts = [as_object(part, "a content part") for part in content]
    for part in parts:
        if part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise BadRowError("not_text", f"a content part has type {part.get('type')!r}; only text is read")
    return "".join(str(part["text"]) for part in parts)


def check_conversation(messages: Sequence[Message]) -> None:
    """Refuse messages that cannot be one conversation of an expert with its tools.

    Raises:
        BadRowError: If the conversation has no assistant turn, two assistant turns in a row, an empty assistant turn,
            or a tool result without its call.
    """
    if not messages:
        raise BadRowError("no_messages", "the list of messages is empty")
    if all(message.role is not Role.ASSISTANT for message in messages[1:]):
        raise BadRowError(
            "no_assistant_turn",
            f"a conversation needs an assistant message after the first message, got {len(messages)} messages without "
            "one",
        )
    open_calls: list[ToolCall] = []
    previous: Role | None = None
    for number, message in enumerate(messages):
        if message.role is Role.TOOL:
            _close_call(open_calls, message, number)
        else:
            open_calls = list(message.tool_calls)
        if message.role is Role.ASSISTANT:
            _check_action(message, previous, number)
        previous = message.role


def _check_action(message: Message, previous: Role | None, number: int) -> None:
    if previous is Role.ASSISTANT:
        raise BadRowError("consecutive_assistant", f"messages {number - 1} and {number} are both assistant messages")
    if not message.content and not message.tool_calls:
        raise BadRowError("empty_action", f"assistant message {number} has neither text nor calls")


def _close_call(open_calls: list[ToolCall], message: Message, number: int) -> None:
    """Remove the call that this result answers from the open calls: by id if both have one, else the first by name."""
    answered = next((call for call in open_calls if is_result_of(message, call)), None)
    if answered is None:
        what = message.tool_call_id or message.name or "a call"
        raise BadRowError(
            "tool_result_without_call", f"message {number} is a result of {what}, but no such call awaits a result"
        )
    # Compared by identity, since parallel calls may be equal.
    open_calls[:] = [call for call in open_calls if call is not answered]


def is_result_of(message: Message, call: ToolCall) -> bool:
    """Whether a tool message is the result of a call: by id if both have one, else by name."""
    if message.tool_call_id is not None and call.id is not None:
        return message.tool_call_id == call.id
    return message.name in (None, "", call.name)


def _optional_text(obj: JsonObject, key: str) -> str | None:
    value = obj.get(key)
    if value is not None and not isinstance(value, str):
        raise BadRowError("not_text", f"{key} must be text, got {type_in_words(value)}")
    return value
