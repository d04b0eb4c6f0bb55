"""Request of OpenAI's chat completions -> messages and tools as a chat template reads them; a turn -> the answer."""

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from verl_pivot.types import Json, JsonObject, ToolCall

CONTEXT_FULL = "context_length_exceeded"
"""OpenAI's code for a conversation that leaves no room for an answer."""


class ChatRefusedError(Exception):
    """A request that gets no turn of the policy; the text says why, in one sentence."""

    def __init__(self, text: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(text)
        self.status, self.code = status, code

    def as_dict(self) -> JsonObject:
        """Body of the answer, in OpenAI's form."""
        return {"error": {"message": str(self), "type": "invalid_request_error", "param": None, "code": self.code}}


class _Body(msgspec.Struct):
    """Fields of a request that are read; the trainer's own sampling parameters hold, whatever others it has."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    logprobs: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What the policy is asked."""

    messages: list[JsonObject]
    """Messages of text alone, each with the fields that say something."""
    tools: list[JsonObject]
    """Schemas of the tools in the OpenAI form."""
    max_tokens: int | None
    """Most tokens of the answer; None: what is left of the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A turn of the policy, as an answer shows it."""

    content: str
    reasoning: str | None
    calls: tuple[ToolCall, ...]
    ended: bool
    """Whether the policy ended the turn by itself; False if it was cut off."""
    num_read: int
    """Tokens that the policy read."""
    num_sampled: int

    def message(self) -> JsonObject:
        """The turn as a message of the conversation, with new ids for its calls."""
        message: JsonObject = {"role": "assistant", "content": self.content or None}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{secrets.token_hex(12)}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                }
                for call in self.calls
            ]
        return message

    def answer(self, message: JsonObject) -> JsonObject:
        """Body of the answer with this message."""
        finished = "tool_calls" if self.calls else "stop" if self.ended else "length"
        total = self.num_read + self.num_sampled
        return {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "policy",
            "choices": [{"index": 0, "message": message, "finish_reason": finished, "logprobs": None}],
            "usage": {"prompt_tokens": self.num_read, "completion_tokens": self.num_sampled, "total_tokens": total},
        }


def read_request(body: bytes) -> ChatRequest:
    """Read the body of a request.

    Raises:
        ChatRefusedError: If it is none, holds anything but text, or asks for what only a whole server offers.
    """
    try:
        read = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ChatRefusedError(f"this is no request of chat completions: {error}") from error
    offered = (("n", read.n not in (None, 1)), ("stream", read.stream), ("logprobs", read.logprobs))
    for name, is_asked in offered:
        if is_asked:
            raise ChatRefusedError(f"the policy in training gives one whole answer; leave `{name}` out")
    if not read.messages:
        raise ChatRefusedError("there are no messages")
    limits = [limit for limit in (read.max_tokens, read.max_completion_tokens) if limit is not None]
    if limits and min(limits) < 1:
        raise ChatRefusedError("max_tokens must be at least 1")
    messages = [_message(each) for each in read.messages]
    return ChatRequest(messages=messages, tools=list(read.tools or []), max_tokens=min(limits, default=None))


def _message(message: Mapping[str, Any]) -> JsonObject:
    """A message with the fields that say something, and with plain text as its content."""
    role = message.get("role")
    if role == "developer":  # the name of the system's role for OpenAI's later models
        role = "system"
    if role not in ("system", "user", "assistant", "tool"):
        raise ChatRefusedError(f"a message has the role {role!r}; known: system, developer, user, assistant, tool")
    read: JsonObject = {"role": role, "content": _text(message.get("content"))}
    if message.get("tool_calls"):
        read["tool_calls"] = [_call(each) for each in message["tool_calls"]]
    if message.get("tool_call_id"):
        read["tool_call_id"] = message["tool_call_id"]
    return read


def _text(content: Json) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise ChatRefusedError("a message has content that is not text, such as an image; the policy reads text alone")
    return "".join(map(str, texts))


def _call(call: Any) -> JsonObject:
    match call:
        case {"function": {"name": str(name), "arguments": str(arguments)}}:
            function: JsonObject = {"name": name, "arguments": arguments}
            return {"id": call.get("id"), "type": "function", "function": function}
    raise ChatRefusedError("a message has a tool call without the name of a function and its arguments as text")


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
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError) as error:
        raise ChatRefusedError(f"the arguments of a tool call are not JSON: {error}") from error
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
