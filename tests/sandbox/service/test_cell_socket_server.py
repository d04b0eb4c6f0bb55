"""WebSockets of sessions, on a real service over a scripted backend."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.support.fake_backend import TOKEN, FakeBackend, serving, until
from verl_pivot.errors import SessionLostError
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.service.service import Service
from verl_pivot.sandbox.session import Session
from verl_pivot.sandbox.wire import MAX_CELL_BYTES


@asynccontextmanager
async def cells(service: Service, token: str = TOKEN) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a session "s", and yield a WebSocket of it."""
    async with aiohttp.ClientSession(service.url, headers={"Authorization": f"Bearer {token}"}) as http:
        opening = {"client": "c", "id": "s", "deadline_seconds": 10.0, "limits": {}, "network": "none"}
        await http.post("/v1/sessions", json=opening)
        async with http.ws_connect("/v1/sessions/s/cells") as socket:
            yield socket


@asynccontextmanager
async def using(backend: FakeBackend) -> AsyncIterator[Session]:
    async with serving(backend) as service, Sandbox([service.url], TOKEN) as sandbox, await sandbox.open() as session:
        yield session


def cell(code: str, id: str = "1", **fields: Any) -> str:
    body = {"client": "c", "id": id, "deadline_seconds": 10.0, "epoch": 1, "code": code, "wall_seconds": 1.0}
    return json.dumps(body | fields)


async def ask(socket: aiohttp.ClientWebSocketResponse, message: str) -> dict[str, Any]:
    await socket.send_str(message)
    line: dict[str, Any] = json.loads((await socket.receive()).data)
    return line


async def test_cells_are_answered_one_after_the_other() -> None:
    async with serving(FakeBackend()) as service, cells(service) as socket:
        lines = [await ask(socket, cell(f"print {number}", str(number))) for number in range(3)]

    assert [line["id"] for line in lines] == ["0", "1", "2"]
    assert [line["result"]["stdout"] for line in lines] == ["0", "1", "2"]


@pytest.mark.parametrize("message", ["", "[]", "{", '{"client": "c"}', cell("print 1", extra=1), cell("", id="")])
async def test_a_message_that_is_no_cell_is_refused_and_the_next_is_served(message: str) -> None:
    async with serving(FakeBackend()) as service, cells(service) as socket:
        refused = await ask(socket, message)
        served = await ask(socket, cell("print 1"))

    assert refused["failure"]["kind"] == "invalid_request"
    assert served["result"]["stdout"] == "1"


async def test_a_message_that_is_too_large_closes_the_socket() -> None:
    async with serving(FakeBackend()) as service, cells(service) as socket:
        await socket.send_str(cell("x" * MAX_CELL_BYTES))
        message = await socket.receive()

    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.MESSAGE_TOO_BIG)


async def test_without_the_token_there_is_no_socket() -> None:
    async with serving(FakeBackend()) as service:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with cells(service, "another token, long enough"):
                pass

    assert refused.value.status == 401


async def test_a_client_that_goes_ends_its_cell() -> None:
    backend = FakeBackend()
    async with using(backend) as session:
        waiting = asyncio.create_task(session.run("hang"))
        await until(lambda: backend.num_running == 1)
        waiting.cancel()
        await until(lambda: backend.killed == ["hang"])


async def test_a_service_with_idle_sockets_closes_them_when_it_stops() -> None:
    async with serving(FakeBackend()) as service, cells(service) as socket:
        stopping = asyncio.create_task(service.stop())
        message = await socket.receive()
        await stopping

    assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)


async def test_the_client_uses_a_socket_for_cells_and_a_post_for_large_ones() -> None:
    backend = FakeBackend()
    async with using(backend) as session:
        small = await session.run("print 1")
        large = await session.run(f"print {'2' * MAX_CELL_BYTES}")

    assert small.stdout == "1"
    assert large.stdout == "2" * MAX_CELL_BYTES


@pytest.mark.slow
async def test_a_cell_of_half_a_minute_is_answered() -> None:
    async with using(FakeBackend()) as session:
        result = await session.run("sleep 32", wall_seconds=60.0)

    assert result.status == "ok"


async def test_a_socket_that_breaks_is_opened_again_and_the_cell_runs_once() -> None:
    backend = FakeBackend()
    async with using(backend) as session:
        await session.run("print 1")
        assert session._socket._socket is not None
        await session._socket._socket.close()
        second = await session.run("print 2")

    assert second.stdout == "2"
    assert [program.code for program in backend.started] == ["print 1", "print 2"]


async def test_a_session_is_lost_with_its_service() -> None:
    async with serving(FakeBackend()) as service, Sandbox([service.url], TOKEN) as sandbox:
        session = await sandbox.open()
        await session.run("print 1")
        await service.stop()

        with pytest.raises(SessionLostError):
            await session.run("print 2")


CALLS = {"max_calls": 2, "reply_seconds": 5.0}


def http_client(service: Service) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(service.url, headers={"Authorization": f"Bearer {TOKEN}"})


@asynccontextmanager
async def calling(service: Service) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a session "s" whose cells may call `search`, and yield a WebSocket of it."""
    async with aiohttp.ClientSession(service.url, headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        opening = {"client": "c", "id": "s", "deadline_seconds": 10.0, "functions": [{"name": "search"}]}
        await http.post("/v1/sessions", json=opening)
        async with http.ws_connect("/v1/sessions/s/cells") as socket:
            yield socket


async def test_a_call_comes_before_the_answer_and_its_reply_goes_back() -> None:
    async with serving(FakeBackend()) as service, calling(service) as socket:
        call = await ask(socket, cell('call search {"query": "a"}', calls=CALLS))
        answer = await ask(socket, json.dumps({"number": 0, "value": '"found"'}))

    assert call["call"] == [0, "search", '{"query": "a"}']
    assert "found" in answer["result"]["stdout"]


@pytest.mark.parametrize(
    "reply",
    ["", "[]", "{}", '{"number": 0}', '{"number": 7, "value": "1"}', '{"number": 0, "value": "1", "error": "x"}'],
)
async def test_a_reply_that_is_none_fails_its_cell_and_the_next_is_served(reply: str) -> None:
    async with serving(FakeBackend()) as service, calling(service) as socket:
        await ask(socket, cell("call search {}", calls=CALLS))
        failed = await ask(socket, reply)
        served = await ask(socket, cell("print 1", "2"))

    assert failed["failure"]["kind"] == "invalid_request"
    assert served["result"]["stdout"] == "1"


async def test_a_cell_with_calls_needs_the_socket() -> None:
    async with serving(FakeBackend()) as service, calling(service), http_client(service) as http:
        answer = await http.post("/v1/sessions/s/run", data=cell("call search {}", calls=CALLS))
        line = await answer.json()

    assert (answer.status, line["failure"]["kind"]) == (400, "invalid_request")
    assert "needs the session's WebSocket" in line["failure"]["message"]


async def test_the_socket_of_a_session_with_functions_takes_larger_messages() -> None:
    async with serving(FakeBackend()) as service, calling(service) as socket:
        line = await ask(socket, cell(f"print {'x' * MAX_CELL_BYTES}"))

    assert line["result"]["stdout"] == "x" * MAX_CELL_BYTES


@pytest.mark.parametrize(
    "functions",
    [[{"name": "a-b"}], [{"name": "a"}, {"name": "a"}], [{"name": "a", "code": "x"}], [{}], {}, [{"name": 1}]],
)
async def test_functions_that_are_none_are_refused(functions: object) -> None:
    async with serving(FakeBackend()) as service, http_client(service) as http:
        opening = {"client": "c", "id": "s", "deadline_seconds": 10.0, "functions": functions}
        answer = await http.post("/v1/sessions", json=opening)
        line = await answer.json()

    assert (answer.status, line["failure"]["kind"]) == (400, "invalid_request")
