"""Inference servers that a test scripts: a real HTTP server on the loopback, with a function that answers."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from verl_pivot.types import Json, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the server; a status of 0 closes the connection without an answer."""

    body: "Json | bytes"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class FakeServer:
    """A server that runs, and the requests that it got."""

    url: str
    requests: list[JsonObject] = field(default_factory=list)
    """Bodies of the POST requests, in the order in which they came."""
    stop: Callable[[], None]


@contextmanager
def fake_server(respond: Callable[[str, JsonObject], Answer]) -> Iterator[FakeServer]:
    """Answer requests by `respond(path, body)` until the block ends or `stop` is called."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _send(self, respond(self.path, {}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append(body)
            _send(self, respond(self.path, body))

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    stopped = threading.Event()

    def stop() -> None:
        if not stopped.is_set():
            stopped.set()
            server.shutdown()
            server.server_close()

    fake = FakeServer(url=f"http://127.0.0.1:{server.server_address[1]}", stop=stop)
    thread.start()
    try:
        yield fake
    finally:
        stop()
        thread.join()


def _send(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    if answer.status == 0:
        return
    data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    handler.send_response(answer.status)
    for name, value in {**answer.headers, "Content-Length": str(len(data))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def sglang_sample(token_ids: list[int], *, text: str = "", end: str = "stop", cached: int = 0) -> JsonObject:
    """One sample as SGLang 0.5.12 answers it."""
    return {
        "text": text,
        "output_ids": list(token_ids),
        "meta_info": {"finish_reason": {"type": end}, "completion_tokens": len(token_ids), "cached_tokens": cached},
    }


def openai_answer(text: str, *, token_ids: list[int] | None = None, end: str = "stop") -> JsonObject:
    """One completion as vLLM answers it."""
    return {
        "choices": [{"index": 0, "text": text, "finish_reason": end, "token_ids": token_ids}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}},
    }
