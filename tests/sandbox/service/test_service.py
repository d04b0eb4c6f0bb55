"""The HTTP service over a scripted backend."""

import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from tests.support.fake_backend import TOKEN, FakeBackend, serving, until
from verl_pivot.cli import app
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.service.backend import BackendSettings, make_backend
from verl_pivot.sandbox.service.service import Service
from verl_pivot.sandbox.service.settings import ServiceLimits, ServiceSettings
from verl_pivot.sandbox.wire import MAX_BODY_BYTES


def item(id: str, code: str = "print 1", *, deadline_seconds: float = 60.0, **program: Any) -> dict[str, Any]:
    return {"id": id, "program": {"code": code, **program}, "deadline_seconds": deadline_seconds}


@asynccontextmanager
async def http(service: Service, token: str = TOKEN) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(service.url, headers={"Authorization": f"Bearer {token}"}) as session:
        yield session


async def ask(service: Service, *items: dict[str, Any], client: str = "c") -> dict[str, dict[str, Any]]:
    """Send the items in one request; {id: line of the answer}."""
    async with http(service) as session, session.post("/v1/run", json={"client": client, "requests": items}) as answer:
        assert answer.status == 200, await answer.text()
        lines = [json.loads(line) for line in (await answer.text()).splitlines() if line]
    assert len(lines) == len({line["id"] for line in lines})
    return {line["id"]: line for line in lines}


def kinds(lines: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {
        name: line["failure"]["kind"] if "failure" in line else line["result"]["status"] for name, line in lines.items()
    }


async def test_each_request_is_answered_as_it_ends() -> None:
    async with serving(FakeBackend()) as service, http(service) as session:
        requests = [item("slow", "sleep 0.3"), item("fast", "print 1"), item("wrong", "exit 3")]
        async with session.post("/v1/run", json={"client": "c", "requests": requests}) as answer:
            order = [json.loads(line)["id"] async for line in answer.content if line.strip()]

    assert sorted(order[:2]) == ["fast", "wrong"]
    assert order[2:] == ["slow"]


async def test_a_result_says_its_node_and_its_time_in_the_queue() -> None:
    async with serving(FakeBackend(num_slots=1), node="node-7") as service:
        lines = await ask(service, item("a", "sleep 0.05"), item("b", "print x"))

    result = lines["b"]["result"]
    assert (result["status"], result["stdout"], result["node"]) == ("ok", "x", "node-7")
    assert 0.04 < result["timing"]["queue_seconds"] < 20.0
    assert result["timing"]["wall_seconds"] == 0.001


async def test_every_failure_has_its_kind() -> None:
    async with serving(FakeBackend()) as service:
        lines = await ask(service, *(item(verb, verb) for verb in ("refuse", "klingon", "break", "bug", "lose")))

    assert {name: (line["failure"]["kind"], line["failure"]["retryable"]) for name, line in lines.items()} == {
        "refuse": ("invalid_request", False),
        "klingon": ("unsupported_language", False),
        "break": ("sandbox_error", True),
        "bug": ("sandbox_error", True),
        "lose": ("session_lost", False),
    }


async def test_no_more_run_at_once_than_there_are_slots() -> None:
    backend = FakeBackend(num_slots=3)
    async with serving(backend) as service:
        await ask(service, *(item(str(number), "sleep 0.01") for number in range(12)))

    assert (backend.max_running, len(backend.started), backend.num_running) == (3, 12, 0)


INVALID_ITEMS: dict[str, tuple[Any, str]] = {
    "unknown field": (
        {**item("bad"), "priority": 1},
        "requests[1] is refused: Object contains unknown field `priority`",
    ),
    "unknown field of the program": (item("bad", stdinn=""), "requests[1]: Object contains unknown field `stdinn`"),
    "unknown limit": (
        item("bad", limits={"wall_ms": 1}),
        "requests[1]: Object contains unknown field `wall_ms` - at `$.limits`",
    ),
    "negative limit": (
        item("bad", limits={"wall_seconds": -1}),
        "requests[1]: limits.wall_seconds must be from 0.01 to 600.0, got -1.0",
    ),
    "huge limit": (
        item("bad", limits={"num_processes": 10**30}),
        f"requests[1]: limits.num_processes must be from 1 to 1024, got {10**30}",
    ),
    "fraction": (
        item("bad", limits={"cpu_seconds": 1.5}),
        "requests[1]: Expected `int`, got `float` - at `$.limits.cpu_seconds`",
    ),
    "no code": ({"id": "bad", "program": {}, "deadline_seconds": 1.0}, "missing required field `code`"),
    "null code": (item("bad", None), "requests[1]: Expected `str`, got `null` - at `$.code`"),
    "parent folder": (item("bad", files={"../x": ""}), "file name '../x' must be relative"),
    "no base64": (item("bad", files={"x": "?"}), "requests[1]: Invalid base64 encoded string"),
    "unknown network": (item("bad", network="all"), "Invalid enum value 'all' - at `$.network`"),
    "negative deadline": (item("bad", deadline_seconds=-1.0), "deadline_seconds must be in (0, 86400], got -1.0"),
    "long id": (item("b" * 65), "id must be 1 to 64 ASCII characters"),
    "id that is no ASCII": (item("\u00e9"), "id must be 1 to 64 ASCII characters"),
}


@pytest.mark.parametrize("name", INVALID_ITEMS)
async def test_a_wrong_item_is_refused_by_a_sentence_and_alone(name: str) -> None:
    wrong, sentence = INVALID_ITEMS[name]
    async with serving(FakeBackend()) as service:
        lines = await ask(service, item("first"), wrong, item("last"))

    assert kinds(lines) == {"first": "ok", wrong["id"][:64]: "invalid_request", "last": "ok"}
    assert sentence in lines[wrong["id"][:64]]["failure"]["message"]


async def test_an_item_without_id_is_refused_alone() -> None:
    async with serving(FakeBackend()) as service:
        lines = await ask(service, item("good"), {"program": {"code": "x"}})

    assert kinds(lines) == {"good": "ok", None: "invalid_request"}


async def test_one_id_twice_in_a_batch_is_refused() -> None:
    backend = FakeBackend()
    async with serving(backend) as service:
        lines = await ask(service, item("twice"), item("once", "print once"), item("twice"))

    assert kinds(lines) == {"once": "ok", "twice": "invalid_request"}
    message = "id 'twice' occurs 2 times in one batch; give each request its own id"
    assert lines["twice"]["failure"]["message"] == message
    assert [program.code for program in backend.started] == ["print once"]


BODIES: dict[str, tuple[bytes, int, str]] = {
    "no JSON": (b"{", 400, "the body is refused: Input data was truncated"),
    "no object": (b"[]", 400, "the body is refused: Expected `object`, got `array`"),
    "no UTF-8": (b'{"client": "\xff"}', 400, "the body is refused"),
    "NaN": (b'{"client": "c", "requests": [NaN]}', 400, "the body is refused: JSON is malformed: invalid character"),
    "deep": (b'{"client": "c", "requests": ' + b"[" * 100_000, 400, "the body is refused: maximum recursion depth"),
    "long number": (b'{"client": ' + b"1" * 10_000 + b"}", 400, "the body is refused"),
    "empty batch": (b'{"client": "c", "requests": []}', 400, "a batch holds 1 to 64 requests, got 0"),
    "65 items": (b'{"client": "c", "requests": [' + b"1," * 64 + b"1]}", 400, "1 to 64 requests, got 65"),
    "no client": (b'{"client": "", "requests": [1]}', 400, "client must be 1 to 64 ASCII characters, got ''"),
    "unknown field": (b'{"client": "c", "requests": [], "x": 1}', 400, "unknown field `x`"),
    "oversized": (b" " * (MAX_BODY_BYTES + 1), 413, f"a body of {MAX_BODY_BYTES + 1} bytes is larger than"),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_wrong_body_is_refused_by_a_sentence(name: str) -> None:
    body, status, sentence = BODIES[name]
    async with serving(FakeBackend()) as service, http(service) as session:
        async with session.post("/v1/run", data=io.BytesIO(body)) as answer:
            failure = (await answer.json())["failure"]
        assert kinds(await ask(service, item("next"))) == {"next": "ok"}

    assert (answer.status, failure["retryable"]) == (status, False)
    assert sentence in failure["message"]


async def test_a_body_of_unknown_length_is_refused() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"{}"

    async with (
        serving(FakeBackend()) as service,
        http(service) as session,
        session.post("/v1/run", data=chunks()) as answer,
    ):
        assert answer.status == 411


@pytest.mark.parametrize("token", ["", "a token for testS", "\u00fc"])
async def test_without_the_token_nothing_but_health_and_metrics_is_told(token: str) -> None:
    backend = FakeBackend()
    async with serving(backend) as service, http(service, token) as session:
        statuses = {}
        for method, path in (
            ("POST", "/v1/run"),
            ("POST", "/v1/sessions"),
            ("DELETE", "/v1/sessions/x"),
            ("POST", "/v1/stop"),
            ("POST", "/healthz"),
            ("GET", "/v1/run"),
            ("GET", "/healthz"),
            ("GET", "/metrics"),
        ):
            async with session.request(method, path, data=b"{}" if method == "POST" else None) as answer:
                statuses[f"{method} {path}"] = answer.status
                assert TOKEN not in await answer.text()

    assert [path for path, status in statuses.items() if status == 200] == ["GET /healthz", "GET /metrics"]
    assert {status for status in statuses.values() if status != 200} == {401}


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16 characters, got 5"):
        ServiceSettings(token="12345")


async def test_health_says_tier_and_load() -> None:
    async with serving(FakeBackend(num_slots=2), backend_name="fake") as service, http(service) as session:
        waiting = asyncio.create_task(ask(service, *(item(str(number), "sleep 0.5") for number in range(5))))
        await until(lambda: service._executions.num_running == 2)
        async with session.get("/healthz") as answer:
            health = await answer.json()
        await waiting

    assert health | {"version": ""} == {
        "status": "ok",
        "tier": "T9",
        "backend": "fake",
        "slots": 2,
        "queued": 3,
        "in_flight": 2,
        "version": "",
    }


def bounds_hit(service: Service) -> dict[str, int]:
    """{bound: number of requests that hit it} for the bounds that were hit."""
    counts = re.findall(r'^sandbox_bounds_hit_total\{bound="(\w+)"\} (\S+)$', service.metrics.render().decode(), re.M)
    return {bound: int(float(count)) for bound, count in counts if float(count)}


async def test_metrics_count_what_happened() -> None:
    async with serving(FakeBackend()) as service, http(service) as session:
        await ask(service, item("1"), item("2"), item("3", "exit 1"), item("4", "break"))
        async with session.get("/metrics") as answer:
            lines = set((await answer.text()).splitlines())

    assert {
        'sandbox_executions_total{status="ok"} 2.0',
        'sandbox_executions_total{status="error"} 1.0',
        'sandbox_failures_total{kind="sandbox_error"} 1.0',
        "sandbox_queue_seconds_count 3.0",
        "sandbox_wall_seconds_count 3.0",
        "sandbox_queued 0.0",
        "sandbox_in_flight 0.0",
        "sandbox_slots 4.0",
        "sandbox_sessions_open 0.0",
    } <= lines


async def test_a_burst_of_twice_the_capacity_is_answered_in_full() -> None:
    backend = FakeBackend(num_slots=8)
    async with serving(backend, limits=ServiceLimits(max_queued=100)) as service:
        batches = [
            ask(service, *(item(f"{batch}-{number}", "sleep 0.02") for number in range(54)), client=str(batch))
            for batch in range(4)
        ]
        lines = {name: line for answered in await asyncio.gather(*batches) for name, line in answered.items()}
        assert kinds(await ask(service, item("later"))) == {"later": "ok"}
        assert service._executions.budget.used == 0

    outcomes = list(kinds(lines).values())
    assert len(outcomes) == 216
    assert outcomes.count("ok") + outcomes.count("overloaded") == 216
    assert outcomes.count("ok") >= 108
    assert outcomes.count("overloaded") > 0
    hit = bounds_hit(service)
    assert set(hit) <= {"max_queued", "share_of_client"}
    assert sum(hit.values()) == outcomes.count("overloaded")
    refused = [line["failure"] for line in lines.values() if "failure" in line]
    assert all(failure["retryable"] and failure["retry_after_seconds"] >= 0.05 for failure in refused)


async def test_a_client_with_much_work_does_not_keep_another_from_its_turn() -> None:
    backend = FakeBackend(num_slots=1)
    async with serving(backend) as service:
        requests = [asyncio.create_task(ask(service, item("h", "sleep 0.3"), client="holder"))]
        await until(lambda: backend.num_running == 1)
        greedy = [item(f"g{number}", f"print g{number}") for number in range(64)]
        requests.append(asyncio.create_task(ask(service, *greedy, client="greedy")))
        await until(lambda: service._executions.num_queued == 64)
        requests.append(asyncio.create_task(ask(service, item("m", "print m"), item("n", "print n"), client="modest")))
        await asyncio.gather(*requests)

    codes = [program.code for program in backend.started]
    assert codes[:6] == ["sleep 0.3", "print g0", "print m", "print g1", "print n", "print g2"]
    assert len(codes) == len(set(codes)) == 67


async def test_a_full_queue_refuses_a_request_of_the_client_that_has_most() -> None:
    backend = FakeBackend(num_slots=1)
    async with serving(backend, limits=ServiceLimits(max_queued=10)) as service:
        greedy = asyncio.create_task(
            ask(service, item("hold", "sleep 0.3"), *(item(str(number)) for number in range(10)), client="greedy")
        )
        await until(lambda: service._executions.num_queued == 10)
        modest = await ask(service, item("m1"), item("m2"), client="modest")

    assert kinds(modest) == {"m1": "ok", "m2": "ok"}
    assert bounds_hit(service) == {"share_of_client": 2}
    assert sorted(name for name, kind in kinds(await greedy).items() if kind == "overloaded") == ["8", "9"]


async def test_a_deadline_that_the_queue_outlasts_is_refused_at_once() -> None:
    backend = FakeBackend(num_slots=1)
    async with serving(backend) as service:
        await ask(service, item("measure", "sleep 0.2"))
        long = asyncio.create_task(ask(service, *(item(str(number), "sleep 0.2") for number in range(5))))
        await until(lambda: service._executions.num_queued == 4)
        lines = await ask(service, item("hurried", deadline_seconds=0.1))
        long.cancel()

    assert kinds(lines) == {"hurried": "overloaded"}
    assert "would pass the deadline" in lines["hurried"]["failure"]["message"]
    assert bounds_hit(service) == {"deadline": 1}
    assert lines["hurried"]["failure"]["retry_after_seconds"] > 0.0


async def test_a_deadline_that_passes_in_the_queue_is_expired_and_not_run() -> None:
    backend = FakeBackend(num_slots=1)
    async with serving(backend) as service:
        lines = await ask(service, item("slow", "sleep 0.2"), item("late", "print late", deadline_seconds=0.05))

    assert kinds(lines) == {"slow": "ok", "late": "queue_expired"}
    assert [program.code for program in backend.started] == ["sleep 0.2"]
    assert bounds_hit(service) == {"deadline": 1}


async def test_requests_beyond_the_bytes_are_refused() -> None:
    async with (
        serving(FakeBackend(num_slots=1), limits=ServiceLimits(max_bytes=4000)) as service,
        http(service) as session,
    ):
        holding = asyncio.create_task(ask(service, item("big", "sleep 0.3", stdin="x" * 2000)))
        await until(lambda: service._executions.num_running == 1)
        body = json.dumps({"client": "c", "requests": [item("more", stdin="x" * 2000)]})
        async with session.post("/v1/run", data=body) as answer:
            refused = (await answer.json())["failure"]
        assert kinds(await holding) == {"big": "ok"}
        assert kinds(await ask(service, item("more", stdin="x" * 2000))) == {"more": "ok"}

    assert (answer.status, refused["kind"], refused["retryable"]) == (429, "overloaded", True)
    assert bounds_hit(service) == {"max_bytes": 1}


async def test_a_request_that_comes_again_does_not_run_again() -> None:
    backend = FakeBackend()
    async with serving(backend) as service:
        first = await ask(service, item("a", "print 1"))
        again = await ask(service, item("a", "print 1", deadline_seconds=1.0))
        both = await asyncio.gather(*(ask(service, item("b", "sleep 0.1")) for _ in range(3)))
        other = await ask(service, item("a", "print 1"), client="another")

    assert first == again
    assert both[0] == both[1] == both[2]
    assert kinds(other) == {"a": "ok"}
    assert [program.code for program in backend.started] == ["print 1", "sleep 0.1", "print 1"]


async def test_a_failure_is_not_kept_for_requests_that_come_again() -> None:
    async with serving(FakeBackend()) as service:
        first = await ask(service, item("a", "break-once"))
        again = await ask(service, item("a", "break-once"))

    assert (kinds(first), kinds(again)) == ({"a": "sandbox_error"}, {"a": "ok"})


async def test_an_id_used_for_another_program_is_refused() -> None:
    async with serving(FakeBackend()) as service:
        await ask(service, item("a", "print 1"))
        lines = await ask(service, item("a", "print 2"))

    assert lines["a"]["failure"]["message"] == "id 'a' was used for another program; give each request its own id"


async def test_a_connection_that_closes_takes_its_work_with_it() -> None:
    backend = FakeBackend(num_slots=2)
    async with serving(backend) as service:
        requests = asyncio.create_task(ask(service, *(item(str(number), "hang") for number in range(5))))
        await until(lambda: backend.num_running == 2)
        requests.cancel()
        await until(lambda: not service._executions._live)
        assert service._executions.budget.used == 0

    assert backend.killed == ["hang", "hang"]
    assert len(backend.started) == 2


async def test_a_connection_that_closes_leaves_requests_that_another_waits_for() -> None:
    backend = FakeBackend()
    async with serving(backend) as service:
        gone, stays = (asyncio.create_task(ask(service, item("a", "sleep 0.3"))) for _ in range(2))
        await until(lambda: any(len(live.outboxes) == 2 for live in service._executions._live.values()))
        gone.cancel()
        assert kinds(await stays) == {"a": "ok"}

    assert backend.killed == []


async def test_cancel_ends_waiting_and_running_requests() -> None:
    backend = FakeBackend(num_slots=1)
    async with serving(backend) as service, http(service) as session:
        requests = asyncio.create_task(
            ask(service, item("run", "hang"), item("wait", "print 1"), item("stay", "print 2"))
        )
        await until(lambda: backend.num_running == 1)
        async with session.post("/v1/cancel", json={"client": "c", "ids": ["run", "wait", "unknown"]}) as answer:
            assert await answer.json() == {"cancelled": 2}
        lines = await requests

    assert kinds(lines) == {"run": "cancelled", "wait": "cancelled", "stay": "ok"}
    assert backend.killed == ["hang"]


async def test_stop_refuses_waiting_requests_and_lets_running_programs_end() -> None:
    backend = FakeBackend(num_slots=1)
    service = Service(ServiceSettings(token=TOKEN, drain_seconds=5.0), backend)
    await service.start()
    requests = asyncio.create_task(ask(service, item("run", "sleep 0.3"), item("wait")))
    await until(lambda: backend.num_running == 1)
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0.05)
    late = await ask(service, item("late"))
    await stopping

    assert kinds(await requests) == {"run": "ok", "wait": "shutting_down"}
    assert kinds(late) == {"late": "shutting_down"}
    assert backend.is_stopped


async def test_stop_ends_programs_that_run_too_long() -> None:
    backend = FakeBackend()
    async with serving(backend) as service:
        requests = asyncio.create_task(ask(service, item("run", "hang")))
        await until(lambda: backend.num_running == 1)

    assert kinds(await requests) == {"run": "shutting_down"}
    assert backend.killed == ["hang"]


@pytest.mark.finding("core files and the service's clients", where="no service")
async def test_clients_that_send_slowly_or_nothing_do_not_hold_up_others() -> None:
    async with serving(FakeBackend(), body_seconds=0.2) as service:
        connections = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(200)]
        head = f"POST /v1/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n"
        for number, (_, writer) in enumerate(connections):
            writer.write((head[: 20 + number] if number < 100 else head + '\r\n{"client"').encode())
        assert kinds(await ask(service, item("honest"))) == {"honest": "ok"}
        reader, _ = connections[-1]
        status_line = await reader.readline()
        assert service._executions.budget.used == 0
        for _, writer in connections:
            writer.close()

    assert status_line == b"HTTP/1.1 408 Request Timeout\r\n"


async def test_the_connection_of_a_client_that_does_not_read_is_closed() -> None:
    backend = FakeBackend(num_slots=64)
    async with serving(backend, write_seconds=0.2) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port, limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        items = [item(str(number), "print " + "x" * 400_000) for number in range(60)] + [item("last", "hang")]
        body = json.dumps({"client": "c", "requests": items}).encode()
        writer.write(f"POST /v1/run HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode())
        writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: len(backend.started) == 61)
        assert kinds(await ask(service, item("honest"))) == {"honest": "ok"}
        await until(lambda: backend.killed == ["hang"])
        await until(lambda: service._executions.budget.used == 0)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        assert reader is not None


async def open_session(session: aiohttp.ClientSession, name: str, **fields: Any) -> dict[str, Any]:
    body = {"client": "c", "id": name, "deadline_seconds": 10.0, **fields}
    async with session.post("/v1/sessions", json=body) as answer:
        return dict(await answer.json())


async def run_cell(session: aiohttp.ClientSession, name: str, code: str, *, id: str, **fields: Any) -> dict[str, Any]:
    body = {"client": "c", "id": id, "deadline_seconds": 10.0, "epoch": 1, "code": code, "wall_seconds": 5.0, **fields}
    async with session.post(f"/v1/sessions/{name}/run", json=body) as answer:
        return dict(await answer.json())


async def test_a_session_keeps_its_cells_and_its_branch_a_copy() -> None:
    async with serving(FakeBackend()) as service, http(service) as session:
        opened = await open_session(session, "s")
        first = await run_cell(session, "s", "print a", id="1")
        body = {"client": "c", "id": "branch", "deadline_seconds": 10.0, "epoch": 1}
        async with session.post("/v1/sessions/s/fork", json=body) as answer:
            branch = await answer.json()
        second = await run_cell(session, "s", "print b", id="2")
        other = await run_cell(session, "branch", "print c", id="3")
        async with session.delete("/v1/sessions/s?client=c") as answer:
            assert await answer.json() == {}
        closed = await run_cell(session, "s", "print d", id="4")

    assert opened["session"] == {"id": "s", "epoch": 1, "num_cells": 0}
    assert (first["result"]["value"], second["result"]["value"], other["result"]["value"]) == ("1", "2", "2")
    assert branch["session"] == {"id": "branch", "epoch": 1, "num_cells": 0}
    assert closed["failure"]["kind"] == "session_not_found"


async def test_a_cell_for_an_earlier_epoch_is_lost_and_one_for_the_new_epoch_runs() -> None:
    async with serving(FakeBackend()) as service, http(service) as session:
        await open_session(session, "s")
        killed = await run_cell(session, "s", "kill", id="1")
        stale = await run_cell(session, "s", "print a", id="2")
        fresh = await run_cell(session, "s", "print a", id="3", epoch=2)

    assert (killed["result"]["status"], killed["result"]["session"]["epoch"]) == ("session_killed", 2)
    assert stale["failure"]["kind"] == "session_lost"
    assert fresh["result"]["value"] == "1"


async def test_a_session_runs_one_cell_at_a_time_and_each_once() -> None:
    backend = FakeBackend()
    async with serving(backend) as service, http(service) as session:
        await open_session(session, "s")
        running = asyncio.create_task(run_cell(session, "s", "sleep 0.3", id="1"))
        await until(lambda: backend.num_running == 1)
        busy = await run_cell(session, "s", "print a", id="2")
        joined = await run_cell(session, "s", "sleep 0.3", id="1")
        again = await run_cell(session, "s", "sleep 0.3", id="1")

    assert busy["failure"]["kind"] == "session_busy"
    assert (await running) == joined == again
    assert len(backend.started) == 1


async def test_a_cell_whose_client_went_away_is_not_begun_again() -> None:
    backend = FakeBackend()
    async with serving(backend) as service, http(service) as session:
        await open_session(session, "s")
        gone = asyncio.create_task(run_cell(session, "s", "hang", id="1"))
        await until(lambda: backend.num_running == 1)
        gone.cancel()
        await until(lambda: backend.killed == ["hang"])
        again = await run_cell(session, "s", "hang", id="1")

    assert again["failure"]["kind"] == "session_lost"
    assert len(backend.started) == 1


async def test_a_session_belongs_to_its_client() -> None:
    async with serving(FakeBackend()) as service, http(service) as session:
        await open_session(session, "s")
        stolen = await run_cell(session, "s", "print a", id="1", client="thief")
        async with session.delete("/v1/sessions/s?client=thief") as answer:
            assert (await answer.json())["failure"]["kind"] == "session_not_found"

    assert stolen["failure"]["kind"] == "session_not_found"


async def test_sessions_are_opened_once_and_bounded() -> None:
    backend = FakeBackend()
    async with serving(backend, max_sessions=1) as service, http(service) as session:
        assert await open_session(session, "s") == await open_session(session, "s")
        full = await open_session(session, "t")
        wrong = await open_session(session, "u", limits={"memory_bytes": 1})

    assert full["failure"]["kind"] == "overloaded"
    assert bounds_hit(service) == {"max_sessions": 1}
    assert wrong["failure"]["message"].startswith("limits.memory_bytes must be from")
    assert list(backend.sessions) == ["s"]


async def test_sessions_that_are_asked_for_at_once_are_bounded_too() -> None:
    backend = FakeBackend()
    async with serving(backend, max_sessions=2) as service, http(service) as session:
        opened = await asyncio.gather(*(open_session(session, f"s{number}") for number in range(6)))

    assert sorted(each["failure"]["kind"] for each in opened if "failure" in each) == ["overloaded"] * 4
    assert len(backend.sessions) == 2


async def test_a_session_is_idle_from_the_end_of_its_latest_cell_on() -> None:
    backend = FakeBackend()
    async with serving(backend, session_idle_seconds=0.2) as service, http(service) as session:
        await open_session(session, "s")
        await run_cell(session, "s", "sleep 0.3", id="1")
        await service._sessions.close_idle()
        next_cell = await run_cell(session, "s", "print a", id="2")

    assert next_cell["result"]["stdout"] == "a"


async def test_a_session_that_was_closed_because_it_was_idle_counts_as_lost() -> None:
    backend = FakeBackend()
    async with serving(backend, session_idle_seconds=0.01) as service, http(service) as session:
        await open_session(session, "s")
        await asyncio.sleep(0.02)
        await service._sessions.close_idle()
        late = await run_cell(session, "s", "print a", id="1")

    assert backend.sessions == {}
    assert late["failure"]["kind"] == "session_lost"
    assert late["failure"]["message"].endswith("or start the service with more --session-idle-seconds")


def test_a_session_outlives_an_update_of_half_an_hour() -> None:
    assert ServiceSettings(token=TOKEN).session_idle_seconds >= 1800.0


def test_backends_have_names_or_are_imported() -> None:
    assert isinstance(make_backend(BackendSettings(backend="tests.support.fake_backend:FakeBackend")), FakeBackend)
    with pytest.raises(ConfigError, match=r"unknown backend 'docker'; use one of \['bwrap_exec', 'zygote'\]"):
        make_backend(BackendSettings(backend="docker"))
    with pytest.raises(ConfigError, match="cannot be imported: No module named 'nowhere'"):
        make_backend(BackendSettings(backend="nowhere:Backend"))


@pytest.mark.parametrize("command", ["serve", "status", "stop"])
def test_help_of_each_command_shows_an_example(command: str) -> None:
    shown = CliRunner().invoke(app, ["sandbox", command, "--help"], env={"COLUMNS": "200"})

    assert shown.exit_code == 0
    assert f"Example: verl-pivot sandbox {command}" in shown.output


@pytest.mark.parametrize("command", ["status", "stop"])
def test_an_address_that_is_no_url_is_one_sentence(command: str) -> None:
    environment = {"VERL_PIVOT_SANDBOX_TOKEN": "a token for tests"}
    done = CliRunner().invoke(app, ["sandbox", command, "--url", "http://[::1"], env=environment)

    assert done.exit_code == 1
    assert done.output.startswith("error: http://[::1 is no URL (")
    assert done.output.endswith("; give one such as http://127.0.0.1:8650\n")


@pytest.mark.parametrize("command", ["serve", "stop"])
def test_a_token_file_that_is_no_text_is_one_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    done = CliRunner().invoke(app, ["sandbox", command, "--token-file", str(tmp_path / "token")])

    assert done.exit_code == 1
    assert f"error: --token-file {tmp_path}/token is no text: " in done.output


def test_commands_say_what_is_missing() -> None:
    environment = {"VERL_PIVOT_SANDBOX_TOKEN": "", "VERL_PIVOT_SANDBOX_URLS": ""}
    status = CliRunner().invoke(app, ["sandbox", "status"], env=environment)
    down = CliRunner().invoke(app, ["sandbox", "status", "--url", "http://127.0.0.1:9"], env=environment)
    stop = CliRunner().invoke(app, ["sandbox", "stop", "--url", "http://127.0.0.1:9"], env=environment)

    assert (status.exit_code, down.exit_code, stop.exit_code) == (1, 1, 1)
    assert status.output == "error: no service named: give --url, or set VERL_PIVOT_SANDBOX_URLS\n"
    assert down.output.startswith("http://127.0.0.1:9 does not answer: ")
    assert stop.output.startswith("error: no token: give --token-file, or set VERL_PIVOT_SANDBOX_TOKEN")


@pytest.mark.slow
def test_a_service_is_started_asked_and_stopped_by_commands(tmp_path: Path) -> None:
    token = tmp_path / "token"
    ready = Path(tempfile.mkdtemp()) / "ready"
    ready.parent.chmod(0o777)  # a service that root starts becomes an ordinary user, who writes here
    token.write_text(TOKEN + "\n")
    command = [sys.executable, "-m", "verl_pivot.cli", "sandbox", "serve", "--token-file", str(token)]
    command += ["--backend", "tests.support.fake_backend:FakeBackend", "--ready-file", str(ready)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        status = CliRunner().invoke(app, ["sandbox", "status", "--url", told["url"]])
        refused = CliRunner().invoke(
            app, ["sandbox", "stop", "--url", told["url"]], env={"VERL_PIVOT_SANDBOX_TOKEN": "x"}
        )
        stop = CliRunner().invoke(app, ["sandbox", "stop", "--url", told["url"], "--token-file", str(token)])

        assert json.loads(ready.read_text()) == told
        assert (told["pid"], told["tier"]) == (process.pid, "T9")
        assert '"status":"ok"' in status.output
        assert "refused to stop (401)" in refused.output
        assert stop.output == f"{told['url']} is stopping\n"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()
