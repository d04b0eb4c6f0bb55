"""OpenAI-compatible chat server that a test scripts: it gives its answers in order, whatever the requests ask."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from tests.support.fake_engine import Answer, FakeServer, fake_server
from verl_pivot.types import JsonObject

MODEL = "small"


def said(text: str | None = None, *calls: tuple[str, Any], end: str = "", tokens: int = 5, **message: Any) -> Answer:
    """An answer with a text and calls, given as (name, arguments); arguments that are text are sent as they are."""
    tool_calls = [
        {
            "id": f"id-{number}",
            "type": "function",
            "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
        }
        for number, (name, given) in enumerate(calls)
    ]
    body = {"role": "assistant", "content": text, **message, **({"tool_calls": tool_calls} if calls else {})}
    choice = {"index": 0, "message": body, "finish_reason": end or ("tool_calls" if calls else "stop")}
    return Answer(body={"choices": [choice], "usage": {"prompt_tokens": 0, "completion_tokens": tokens}})


def counted(answer: Answer, request: JsonObject) -> Answer:
    """The answer, with a prompt of ten tokens for each message."""
    body: Any = answer.body
    messages: Any = request["messages"]
    if answer.status == 200 and isinstance(body, dict) and "usage" in body:
        body["usage"]["prompt_tokens"] = 10 * len(messages)
    return answer


@contextmanager
def chat_server(answers: Sequence[Answer], *, models: Sequence[str] = (MODEL,)) -> Iterator[FakeServer]:
    """Give the answers in order; all requests after the last answer get the last one."""
    lock, num_requests = Lock(), 0

    def respond(path: str, body: JsonObject) -> Answer:
        nonlocal num_requests
        if path == "/v1/models":
            return Answer(body={"data": [{"id": model} for model in models]})
        if path != "/v1/chat/completions":
            return Answer(body={"error": path}, status=404)
        with lock:
            number, num_requests = min(num_requests, len(answers) - 1), num_requests + 1
        return counted(answers[number], body)

    with fake_server(respond) as server:
        yield server
