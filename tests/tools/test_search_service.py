"""The search service and its client, the tool `search`: wire formats of both protocols, limits, and hostile servers."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support.web_servers import running
from verl_pivot.errors import ConfigError
from verl_pivot.tools.calls import CallOutcome
from verl_pivot.tools.http_service import serve
from verl_pivot.tools.search_files import SearchKind
from verl_pivot.tools.search_index import FoundDocument, SearchIndex
from verl_pivot.tools.search_service import SearchService
from verl_pivot.tools.search_writing import write_index
from verl_pivot.tools.toolset import load_toolset
from verl_pivot.types import ErrorKind, ToolCall

ROWS = [
    {"id": "a", "title": "Paris", "text": "The capital of France."},
    {"id": "b", "title": "Lyon", "text": "A city of France."},
    {"id": "c", "text": "Cheese is made of milk."},
]
PARIS = {"id": "a", "contents": "Paris\nThe capital of France."}
LYON = {"id": "b", "contents": "Lyon\nA city of France."}
CHEESE = {"id": "c", "contents": "\nCheese is made of milk."}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    (folder / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    write_index(folder / "documents.jsonl", folder / "wiki", lambda _: None, kind=SearchKind.HYBRID)
    return folder / "wiki"


def answering(handle: Handler) -> web.Application:
    """An application that answers every POST request by this function."""
    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    return app


async def asked(url: str, path: str, body: object) -> tuple[int, Any]:
    """Status and decoded answer of one POST request; a body of bytes is sent as it is."""
    data = BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with aiohttp.ClientSession() as http, http.post(f"{url}{path}", data=data) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text


def rounded(value: Any) -> Any:
    """The value with "score" in place of each float, which must be above 0."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        assert value > 0.0
        return "score"
    return value


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        (
            "/retrieve",
            {"queries": ["capital France", "milk"], "topk": 1, "return_scores": True},
            {"result": [[{"document": PARIS, "score": "score"}], [{"document": CHEESE, "score": "score"}]]},
        ),
        ("/retrieve", {"queries": ["capital France"], "topk": 2}, {"result": [[PARIS, LYON]]}),
        ("/retrieve", {"queries": ["France", ""], "topk": None, "extra": 1}, {"result": [[PARIS, LYON], []]}),
        ("/retrieve", {"queries": ["France"], "topk": 0}, {"result": [[PARIS, LYON]]}),
        ("/retrieve", {"queries": []}, {"result": []}),
        ("/search", {"query": "milk"}, [CHEESE]),
        ("/search", {"query": "milk", "top_n": 1, "return_score": True}, [[CHEESE], ["score"]]),
        ("/batch_search", {"query": ["capital", "volcano"], "top_n": 5}, [[PARIS], []]),
        ("/batch_search", {"query": ["milk"], "return_score": True}, [[[CHEESE]], [["score"]]]),
    ],
)
async def test_answers_have_the_form_of_the_released_servers(
    index: Path, path: str, body: dict[str, Any], answer: Any
) -> None:
    async with running(SearchService(SearchIndex(index, SearchKind.BM25)).app()) as url:
        status, got = await asked(url, path, body)

    assert (status, rounded(got)) == (200, answer)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/retrieve", b"{", 422, "not a valid request to /retrieve: Input data was truncated"),
        ("/retrieve", b"\xff", 422, "not a valid request to /retrieve"),
        ("/retrieve", b"[" * 100_000, 422, "not a valid request to /retrieve"),
        ("/retrieve", b'{"queries": ["caf\xe9"]}', 422, "not a valid request to /retrieve: 'utf-8' codec can't decode"),
        ("/retrieve", {"queries": "milk"}, 422, "Expected `array`, got `str`"),
        ("/retrieve", {"query": ["milk"]}, 422, "missing required field `queries`"),
        ("/retrieve", {"queries": ["milk"], "topk": 101}, 422, "ask for 1 to 100 documents, but this one asks for 101"),
        (
            "/search",
            {"query": "milk", "top_n": -1},
            422,
            "a query can ask for 1 to 100 documents, but this one asks for -1",
        ),
        ("/retrieve", {"queries": ["milk"] * 1025}, 422, "may have at most 1024 queries, but this one has 1025"),
        ("/batch_search", {"query": ["a" * 4097]}, 422, "may have at most 4096 characters, but one has 4097"),
        ("/search", {"query": " "}, 400, "the query is empty"),
        ("/retrieve", b" " * (9 << 20), 422, "8 MiB"),
    ],
)
async def test_a_request_that_cannot_be_answered_is_refused_in_one_sentence(
    index: Path, path: str, body: object, status: int, message: str
) -> None:
    async with running(SearchService(SearchIndex(index)).app()) as url:
        got = await asked(url, path, body)
        assert (await asked(url, "/search", {"query": "milk"}))[0] == 200

    assert got[0] == status
    assert message in str(got[1])


class SlowIndex(SearchIndex):
    """An index that waits before it searches, and records how many queries it got at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.began, self.may_search = threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def search(self, queries: Sequence[str], num_documents: int) -> list[list[FoundDocument]]:
        self.sizes.append(len(queries))
        self.began.set()
        assert self.may_search.wait(timeout=30)
        return super().search(queries, num_documents)


async def test_requests_that_come_while_one_is_answered_are_searched_for_together_and_health_answers_meanwhile(
    index: Path,
) -> None:
    slow = SlowIndex(index)
    async with running(SearchService(slow).app()) as url, aiohttp.ClientSession() as http:
        first = asyncio.ensure_future(asked(url, "/search", {"query": "milk", "top_n": 1}))
        assert await asyncio.to_thread(slow.began.wait, 30)
        bodies = [{"query": ["cheese"], "top_n": 1}, {"query": ["France", "capital"], "top_n": 2}, {"query": []}]
        later = [asyncio.ensure_future(asked(url, "/batch_search", body)) for body in bodies]
        async with http.get(f"{url}/health") as response:
            health = await response.json()
        await asyncio.sleep(0.1)
        slow.may_search.set()
        answers = await asyncio.gather(first, *later)

    assert health == {"status": "healthy", "kind": "hybrid", "documents": 3}
    assert slow.sizes == [1, 3]
    assert answers == [(200, [CHEESE]), (200, [[CHEESE]]), (200, [[PARIS, LYON], [PARIS]]), (200, [])]


async def test_a_port_that_is_taken_is_named(index: Path) -> None:
    async with running(web.Application()) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(
            ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*; give another --host or --port"
        ):
            await serve(SearchService(SearchIndex(index)).app(), "127.0.0.1", port, lambda _: None)


def test_the_command_serves_until_it_is_told_to_end(index: Path) -> None:
    words = [sys.executable, "-m", "verl_pivot.cli", "search", "serve", "--index", str(index), "--port", "0"]
    with subprocess.Popen([*words, "--kind", "dense"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        url = said.split()[-1]
        got = asyncio.run(asked(url, "/search", {"query": "milk"}))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0

    assert re.fullmatch(r"Serving 3 documents by dense at http://127\.0\.0\.1:\d+", said)
    assert got == (200, [CHEESE])


async def calls(folder: Path, entry: str, *queries: str) -> list[CallOutcome]:
    """Outcomes of concurrent calls of a tool `search` with these options."""
    path = folder / f"tools-{len(os.listdir(folder))}.yaml"
    path.write_text(f"- tool: search\n{entry}")
    async with load_toolset(str(path)).open({}, parallel_calls=True, max_calls_per_turn=100) as tools:
        return await tools.toolbox.run([ToolCall(name="search", arguments={"query": query}) for query in queries])


def read(outcome: CallOutcome) -> str:
    assert outcome.observation is not None, outcome.failure
    return outcome.observation.text


@pytest.mark.parametrize("protocol", ["search_r1", "research"])
async def test_the_tool_finds_in_a_service_what_it_finds_in_its_index(
    tmp_path: Path, index: Path, protocol: str
) -> None:
    queries = ("capital France", "milk", "volcano")
    async with running(SearchService(SearchIndex(index)).app()) as url:
        served = await calls(tmp_path, f"  url: {url}/\n  protocol: {protocol}\n  num_documents: 2\n", *queries)
    local = await calls(tmp_path, f"  index: {index}\n  num_documents: 2\n", *queries)
    shown = await calls(tmp_path, f"  index: {index}\n  kind: bm25\n  form: research\n", *queries)

    assert [read(outcome) for outcome in served] == [read(outcome) for outcome in local]
    assert [read(outcome) for outcome in served] == [
        "Doc 1(Title: Paris) The capital of France.\nDoc 2(Title: Lyon) A city of France.",
        "Doc 1: Cheese is made of milk.",
        "no document was found",
    ]
    assert [read(outcome) for outcome in shown] == [
        "Paris\nThe capital of France.\n\nLyon\nA city of France.",
        "Cheese is made of milk.",
        "no document has these words",
    ]


async def test_calls_that_come_together_are_one_request_of_the_recorded_form(tmp_path: Path) -> None:
    bodies: list[Any] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        bodies.append((request.path, body))
        documents = [{"contents": f'"About"\n{query}'} for query in body.get("queries", body.get("query"))]
        if request.path == "/batch_search":
            return web.json_response([[document] for document in documents])
        return web.json_response({"result": [[{"document": document, "score": 1}] for document in documents]})

    async with running(answering(handle)) as url:
        served = await calls(tmp_path, f"  url: {url}\n", "a", "b", "c")
        other = await calls(tmp_path, f"  url: {url}\n  protocol: research\n  num_documents: 5\n", "d")

    assert [read(outcome) for outcome in (*served, *other)] == [f'Doc 1(Title: "About") {each}' for each in "abcd"]
    assert bodies == [
        ("/retrieve", {"queries": ["a", "b", "c"], "topk": 3, "return_scores": True}),
        ("/batch_search", {"query": ["d"], "top_n": 5, "return_score": False}),
    ]


@pytest.mark.parametrize("query", ["", " \n", "w" * 4097])
async def test_an_empty_or_endless_query_is_the_policys_mistake_and_is_not_sent(tmp_path: Path, query: str) -> None:
    (outcome,) = await calls(tmp_path, "  url: http://127.0.0.1:9\n", query)

    assert outcome.observation is not None
    assert outcome.observation.error is ErrorKind.REFUSED
    assert "the query h" in outcome.observation.text


def says(body: object, status: int = 200) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str | bytes) else json.dumps(body)
        return web.Response(body=text, status=status)

    return handle


async def floods(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b"[" * (1 << 20))
    return response


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def trickles(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def dies(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = 1000
    await response.prepare(request)
    await response.write(b'{"result": [')
    assert request.transport is not None
    request.transport.abort()
    return response


async def redirects(request: web.Request) -> web.StreamResponse:
    raise web.HTTPTemporaryRedirect("/elsewhere")


ONE = {"document": {"contents": "Paris\nThe capital."}, "score": 1.0}


@pytest.mark.parametrize(
    ("handle", "failure"),
    [
        (says("overloaded", 500), "answered /retrieve with status 500: overloaded"),
        (says({"detail": "no"}, 422), "answered /retrieve with status 422"),
        (redirects, "answered /retrieve with status 307"),
        (says("<html>"), "sent an answer that is not in the format of protocol search_r1: JSON is malformed"),
        (says(b"\xff\xfe"), "sent an answer that is not in the format of protocol search_r1"),
        (says("[" * 100_000), "sent an answer that is not in the format of protocol search_r1"),
        (says(b'{"result": [[{"document": {"contents": "caf\xe9"}}]]}'), "search_r1: 'utf-8' codec can't decode"),
        (says(""), "sent an answer that is not in the format of protocol search_r1"),
        (says([[{"contents": "of the other protocol"}]]), "Expected `object`, got `array`"),
        (says({"result": [[{"document": {"title": "no contents"}}]]}), "missing required field `contents`"),
        (says({"result": [[{"document": {"contents": None}}]]}), "Expected `str`, got `null`"),
        (says({"result": []}), "answered 1 queries with 0 lists"),
        (says({"result": [[ONE], [ONE]]}), "answered 1 queries with 2 lists"),
        (says({"result": [[ONE] * 4]}), "lists of up to 4 documents, but 3 were requested for each"),
        (floods, "answered with more than 32 MiB"),
        (hangs, "did not answer within 0.5 s"),
        (trickles, "did not answer within 0.5 s"),
        (dies, "cannot be reached: ClientPayloadError"),
    ],
)
async def test_what_a_service_gets_wrong_is_a_failure_of_the_system(
    tmp_path: Path, handle: Handler, failure: str
) -> None:
    async with running(answering(handle)) as url:
        began = time.monotonic()
        (outcome,) = await calls(tmp_path, f"  url: {url}\n  retries: 0\n  timeout_seconds: 0.5\n", "France")

    assert outcome.observation is None
    assert outcome.failure.startswith(f"the search service {url} ")
    assert failure in outcome.failure
    assert not outcome.is_bug
    assert time.monotonic() - began < 10


async def test_a_query_that_a_service_refuses_fails_alone_and_not_those_of_other_rollouts(tmp_path: Path) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        queries = (await request.json())["queries"]
        if "AND (" in queries:
            return web.Response(status=500, text="this query cannot be parsed")
        return web.json_response(
            {"result": [[{"document": {"contents": f'"T"\n{each}'}, "score": 1}] for each in queries]}
        )

    async with running(answering(handle)) as url:
        outcomes = await calls(tmp_path, f"  url: {url}\n  retries: 0\n", "a", "AND (", "b")

    assert [outcome.observation is None for outcome in outcomes] == [False, True, False]
    assert "with status 500: this query cannot be parsed" in outcomes[1].failure
    assert [read(outcomes[place]) for place in (0, 2)] == ['Doc 1(Title: "T") a', 'Doc 1(Title: "T") b']


@pytest.mark.parametrize(("status", "num_requests"), [(503, 1), (500, 7)])
async def test_a_batch_is_divided_if_it_was_refused_and_not_if_the_service_is_busy(
    status: int, num_requests: int, tmp_path: Path
) -> None:
    sizes: list[int] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        sizes.append(len((await request.json())["queries"]))
        return web.Response(status=status)

    async with running(answering(handle)) as url:
        outcomes = await calls(tmp_path, f"  url: {url}\n  retries: 0\n", "a", "b", "c", "d")

    assert [outcome.observation for outcome in outcomes] == [None] * 4
    assert (len(sizes), sizes[0]) == (num_requests, 4)


async def test_a_service_that_is_down_is_a_failure_of_the_system(tmp_path: Path) -> None:
    async with running(web.Application()) as url:
        pass

    (outcome,) = await calls(tmp_path, f"  url: {url}\n  retries: 1\n", "France")

    assert outcome.failure.startswith(f"the search service {url} cannot be reached: ClientConnectorError")


async def test_a_service_that_fails_once_is_asked_again(tmp_path: Path) -> None:
    answers = [says("starting", 503), hangs, says({"result": [[ONE]]})]

    async def handle(request: web.Request) -> web.StreamResponse:
        return await answers.pop(0)(request)

    async with running(answering(handle)) as url:
        (outcome,) = await calls(tmp_path, f"  url: {url}\n  timeout_seconds: 0.5\n", "France")

    assert read(outcome) == "Doc 1(Title: Paris) The capital."
    assert answers == []


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("  num_documents: 2", "give either `index: FOLDER` or `url: http://host:8000`"),
        ("  index: wiki\n  url: http://a:1", "give either `index: FOLDER` or `url: http://host:8000`"),
        ("  url: http://a:1\n  kind: dense", "kind does nothing with `url`"),
        ("  index: wiki\n  protocol: research", "protocol does nothing with `index`"),
        ("  url: http://a:1/retrieve", "give the address without the path, got http://a:1/retrieve"),
        ("  url: a:1", "url: String should match pattern"),
        ("  url: http://a:1\n  protocol: verl", "Input should be 'search_r1' or 'research', got 'verl'"),
        ("  index: wiki\n  kind: sparse", "Input should be 'bm25', 'dense' or 'hybrid', got 'sparse'"),
        ("  index: nowhere\n  kind: hybrid", "nowhere holds no search index; make it with"),
    ],
)
async def test_a_wrong_entry_is_refused_in_one_sentence(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        await calls(tmp_path, entry, "France")
