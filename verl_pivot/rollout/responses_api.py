"""Request of OpenAI's responses -> a PolicyQuestion; a turn of the policy -> the response."""

import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import msgspec

from verl_pivot.rollout.chat_requests import (
    ChatRefusedError,
    ChatTurn,
    PolicyQuestion,
    checked_request,
    read_body,
    server_sent,
)
from verl_pivot.types import Json, JsonObject


class _ResponsesBody(msgspec.Struct):
    """Fields of a request that are read; its sampling parameters are ignored, since the trainer's own apply."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Any = None
    stream: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    top_logprobs: int | None = None


def read_response_request(body: bytes) -> PolicyQuestion:
    """Read the body of a request.

    Raises:
        ChatRefusedError: If it is no such request, holds anything but text, or asks for what is not offered here.
    """
    read = read_body(body, _ResponsesBody, "responses")
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(read, name) is not None:
            raise ChatRefusedError(f"responses are not stored; leave `{name}` out and send the conversation as `input`")
    for name in ("background", "top_logprobs"):
        if getattr(read, name):
            raise ChatRefusedError(f"the policy in training gives a single answer, as text; leave `{name}` out")
    tools = [_tool(each) for each in read.tools or []]
    request = checked_request(_messages(read), tools, [read.max_output_tokens])
    return PolicyQuestion(request, partial(_answer, read), partial(_events, read) if read.stream else None)


def _tool(tool: JsonObject) -> JsonObject:
    """A tool in the nested form of chat completions."""
    if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
        raise ChatRefusedError("a tool is not a function with a name; the policy in training has no other tools")
    # Null means absent, since typed clients write every field that they know.
    function: JsonObject = {key: value for key, value in tool.items() if key != "type" and value is not None}
    return {"type": "function", "function": function}


def _messages(read: _ResponsesBody) -> list[dict[str, Any]]:
    """Messages of chat completions: the items of one turn of the policy become one message, without its reasoning."""
    messages: list[dict[str, Any]] = []
    if read.instructions is not None:
        messages.append({"role": "system", "content": read.instructions})
    items = [{"role": "user", "content": read.input}] if isinstance(read.input, str) else read.input
    for item in items:
        match item:
            case {"type": "function_call"}:
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": function})
            case {"type": "function_call_output", "call_id": number, "output": output}:
                messages.append({"role": "tool", "tool_call_id": number, "content": output})
            case {"role": role, "content": content} if item.get("type") in (None, "message"):
                messages.append({"role": role, "content": content})
            case {"type": "reasoning"}:
                pass
            case _:
                raise ChatRefusedError(
                    f"the input has an item of type {item.get('type')!r}, which the policy cannot read"
                )
    return messages


def _answer(read: _ResponsesBody, turn: ChatTurn) -> JsonObject:
    incomplete: Json = None if turn.ended else {"reason": "max_output_tokens"}
    usage: JsonObject = {
        "input_tokens": turn.num_read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": turn.num_sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.num_read + turn.num_sampled,
    }
    return {
        "id": _number("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": int(time.time()),
        "status": _status(turn),
        "error": None,
        "incomplete_details": incomplete,
        "instructions": read.instructions,
        "max_output_tokens": read.max_output_tokens,
        "metadata": read.metadata or {},
        "model": "policy",
        "output": _items(turn),
        "parallel_tool_calls": read.parallel_tool_calls is not False,
        "tool_choice": read.tool_choice or "auto",
        "tools": list(read.tools or []),
        "usage": usage,
    }


def _items(turn: ChatTurn) -> list[Json]:
    """The turn as items: its reasoning, its text, its calls."""
    message, items = turn.message, list[Json]()
    calls = message.get("tool_calls")
    if message.get("reasoning_content") is not None:
        summary: JsonObject = {"type": "summary_text", "text": message["reasoning_content"]}
        items.append({"type": "reasoning", "id": _number("rs"), "summary": [summary]})
    if message["content"] or not calls:
        part: JsonObject = {"type": "output_text", "text": message["content"] or "", "annotations": []}
        items.append(
            {
                "type": "message",
                "id": _number("msg"),
                "role": "assistant",
                "status": _status(turn),
                "content": [part],
            }
        )
    for call in calls if isinstance(calls, list) else []:
        assert isinstance(call, dict), call
        function = call["function"]
        assert isinstance(function, dict), call
        items.append(
            {
                "type": "function_call",
                "id": _number("fc"),
                "call_id": call["id"],
                "status": "completed",
                **function,
            }
        )
    return items


def _events(read: _ResponsesBody, turn: ChatTurn) -> str:
    """Events with each item of the turn as one piece, between the response's beginning and its end."""
    response = _answer(read, turn)
    begun: JsonObject = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    output = response["output"]
    assert isinstance(output, list), response
    told: list[JsonObject] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        *_item_events(output),
        {"type": f"response.{response['status']}", "response": response},
    ]
    numbers = count()
    return "".join(server_sent({**event, "sequence_number": next(numbers)}, str(event["type"])) for event in told)


def _item_events(items: Sequence[Json]) -> Iterator[JsonObject]:
    for index, item in enumerate(items):
        assert isinstance(item, dict), item
        at: JsonObject = {"output_index": index, "item_id": item["id"]}
        match item:
            case {"type": "message", "content": [dict(part)]}:
                begun: JsonObject = {**item, "status": "in_progress", "content": []}
                text, at = part["text"], {**at, "content_index": 0}
                pieces: list[JsonObject] = [
                    {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
                    {"type": "response.output_text.delta", **at, "delta": text, "logprobs": []},
                    {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
                    {"type": "response.content_part.done", **at, "part": part},
                ]
            case {"type": "function_call", "arguments": arguments}:
                begun = {**item, "status": "in_progress", "arguments": ""}
                done: JsonObject = {**at, "name": item["name"], "arguments": arguments}
                pieces = [
                    {"type": "response.function_call_arguments.delta", **at, "delta": arguments},
                    {"type": "response.function_call_arguments.done", **done},
                ]
            case _:
                begun, pieces = item, []
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        yield from pieces
        yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _status(turn: ChatTurn) -> str:
    return "completed" if turn.ended else "incomplete"


def _number(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
