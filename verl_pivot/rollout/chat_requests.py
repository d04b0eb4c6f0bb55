"""Messages of a request to the gateway -> messages for a chat template; a turn of the policy -> a message."""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from verl_pivot.types import Json, JsonObject, ToolCall

BodyT = TypeVar("BodyT")

CONTEXT_FULL = "context_length_exceeded"
"""OpenAI's code for a conversation that leaves no room for an answer."""
_TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of the parts of a message that are text, in chat completions and in responses."""


class ChatRefusedError(Exception):
    """A request that gets no turn of the policy; the text says why, in one sentence."""

    def __init__(self, text: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(text)
        self.status, self.code = status, code

    def as_dict(self) -> JsonObject:
        """Body of the answer, in OpenAI's form."""
        return {"error": {"message": str(self), "type": "invalid_request_error", "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Request to the policy."""

    messages: list[JsonObject]
    """Messages of text alone, with the fields that chat templates need."""
    tools: list[JsonObject]
    """Schemas of the tools in the OpenAI form."""
    max_tokens: int | None
    """Most tokens of the answer; None: as many as the response has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A turn of the policy, as it is reported in an answer."""

    message: JsonObject
    """The turn as a message of chat completions."""
    ended: bool
    """Whether the policy ended the turn by itself; False if it was cut off."""
    num_read: int
    """Tokens that the policy read."""
    num_sampled: int


class PolicyQuestion(NamedTuple):
    """A request to the gateway: the request to the policy, and the form in which its turn is returned."""

    request: ChatRequest
    answer: Callable[[ChatTurn], JsonObject]
    """A turn -> the body of the answer."""
    events: Callable[[ChatTurn], str] | None
    """A turn -> server-sent events; None if the program asked for one body."""


def turn_message(content: str, reasoning: str | None, calls: Sequence[ToolCall]) -> JsonObject:
    """A turn as a message of chat completions, with new ids for its calls."""
    message: JsonObject = {"role": "assistant", "content": content if content or not calls else None}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {
                    "name": _sendable(call.name),
                    "arguments": _sendable(json.dumps(call.arguments, ensure_ascii=False)),
                },
            }
            for call in calls
        ]
    return message


def _sendable(text: str) -> str:
    """A text with question marks for lone surrogates, which the JSON of a call may hold, but no HTTP body."""
    return text.encode("utf-8", "replace").decode()


def read_body(body: bytes, form: type[BodyT], what: str) -> BodyT:
    """The fields of a request that are read.

    Args:
        body: Body of the request.
        form: The fields.
        what: Kind of request, such as "responses", for the refusal.

    Raises:
        ChatRefusedError: If the body is no such request.
    """
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ChatRefusedError(f"this is not a valid {what} request: {error}") from error


def server_sent(data: Json, event: str = "") -> str:
    """One server-sent event."""
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {json.dumps(data, ensure_ascii=False)}\n\n"


def checked_request(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[JsonObject], limits: Sequence[int | None]
) -> ChatRequest:
    """The request to the policy in messages of chat completions.

    Args:
        messages: The messages.
        tools: Schemas of the tools in the OpenAI form.
        limits: Limits of the answer's tokens; None for each that the request does not give.

    Raises:
        ChatRefusedError: If a message holds anything but text, there is no message, or a limit is below 1.
    """
    if not messages:
        raise ChatRefusedError("the request has no messages")
    given = [limit for limit in limits if limit is not None]
    if given and min(given) < 1:
        raise ChatRefusedError("max_tokens must be at least 1")
    read = [_message(each) for each in messages]
    return ChatRequest(messages=read, tools=list(tools), max_tokens=min(given, default=None))


def _message(message: Mapping[str, Any]) -> JsonObject:
    """A message with the fields that chat templates need, and with plain text as its content."""
    role = message.get("role")
    if role == "developer":  # the name of the system's role for OpenAI's later models
        role = "system"
    if role not in ("system", "user", "assistant", "tool"):
        raise ChatRefusedError(f"a message has the role {role!r}; known: system, developer, user, assistant, tool")
    read: JsonObject = {"role": role, "content": _text(message.get("content"))}
    if calls := message.get("tool_calls"):
        read["tool_calls"] = [_call(each) for each in (calls if isinstance(calls, list) else [calls])]
    if number := message.get("tool_call_id"):
        read["tool_call_id"] = str(number)
    return read


def _text(content: Json) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") in _TEXT_PARTS]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise ChatRefusedError("a message has content that is not text, such as an image; the policy reads only text")
    return "".join(map(str, texts))


def _call(call: Any) -> JsonObject:
    match call:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            function: JsonObject = {"name": name, "arguments": arguments}
            return {"id": str(call.get("id")), "type": "function", "function": function}
    raise ChatRefusedError("a message has a tool call without a function name, or without its arguments as text")


def for_template(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Messages as chat templates read them: arguments as objects, and tools' answers with the names of the tools."""
    names: dict[Json, Json] = {}
    rendered: list[JsonObject] = []
    for message in messages:
        shown = {name: value for name, value in message.items() if name not in ("tool_call_id", "tool_calls")}
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            shown["tool_calls"] = [_with_object(call, names) for call in calls]
        if (name := names.get(message.get("tool_call_id"))) is not None:
            shown["name"] = name
        rendered.append(shown)
    return rendered


def _with_object(call: Any, names: dict[Json, Json]) -> JsonObject:
    function = call["function"]
    names[call["id"]] = function["name"]
    try:
        arguments = json.loads(_sendable(json.dumps(json.loads(function["arguments"]), ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise ChatRefusedError(f"the arguments of a tool call are not JSON: {error}") from error
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
