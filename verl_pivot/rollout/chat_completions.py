"""Request of OpenAI's chat completions -> a PolicyQuestion; a turn of the policy -> the body of the answer."""

import secrets
import time
from functools import partial
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


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _CompletionBody(msgspec.Struct):
    """Fields of a request that are read; its sampling parameters are ignored, since the trainer's own apply."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logprobs: bool | None = None


def read_completion(body: bytes) -> PolicyQuestion:
    """Read the body of a request.

    Raises:
        ChatRefusedError: If it is no such request, holds anything but text, or asks for what is not offered here.
    """
    read = read_body(body, _CompletionBody, "chat completions")
    for name, is_asked in (("n", read.n not in (None, 1)), ("logprobs", read.logprobs)):
        if is_asked:
            raise ChatRefusedError(f"the policy in training gives a single answer, as text; leave `{name}` out")
    request = checked_request(read.messages, read.tools or [], [read.max_tokens, read.max_completion_tokens])
    has_usage = read.stream_options is not None and bool(read.stream_options.include_usage)
    return PolicyQuestion(request, _answer, partial(_events, has_usage=has_usage) if read.stream else None)


def _answer(turn: ChatTurn) -> JsonObject:
    choice: JsonObject = {"index": 0, "message": turn.message, "finish_reason": _finish_reason(turn), "logprobs": None}
    return {**_envelope("chat.completion"), "choices": [choice], "usage": _usage(turn)}


def _events(turn: ChatTurn, *, has_usage: bool) -> str:
    """The whole turn as one event, then its end, and its token counts if they were asked for."""
    envelope = _envelope("chat.completion.chunk")
    calls = turn.message.get("tool_calls")
    listed = calls if isinstance(calls, list) else []
    numbered: list[Json] = [{"index": at, **call} for at, call in enumerate(listed) if isinstance(call, dict)]
    piece: JsonObject = {**turn.message, **({"tool_calls": numbered} if numbered else {})}
    deltas: list[Json] = [
        {"index": 0, "delta": piece, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": _finish_reason(turn)},
    ]
    chunks: list[JsonObject] = [{**envelope, "choices": [delta]} for delta in deltas]
    if has_usage:
        chunks.append({**envelope, "choices": [], "usage": _usage(turn)})
    return "".join(map(server_sent, chunks)) + "data: [DONE]\n\n"


def _envelope(kind: str) -> JsonObject:
    number = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": number, "object": kind, "created": int(time.time()), "model": "policy"}


def _finish_reason(turn: ChatTurn) -> str:
    return "tool_calls" if "tool_calls" in turn.message else "stop" if turn.ended else "length"


def _usage(turn: ChatTurn) -> JsonObject:
    total = turn.num_read + turn.num_sampled
    return {"prompt_tokens": turn.num_read, "completion_tokens": turn.num_sampled, "total_tokens": total}
