"""The client on real services over a scripted backend: results, errors, retries, cancellation, sessions."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import psutil
import pytest
from aiohttp import web

from tests.support.fake_backend import TOKEN, FakeBackend, serving, until
from verl_pivot.errors import ConfigError, SandboxError, SandboxRequestError, SessionLostError
from verl_pivot.sandbox import local_service
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.execution import Limits, Program, Status
from verl_pivot.sandbox.service.service import Service
from verl_pivot.sandbox.service.settings import ServiceLimits

FAKE = ("--backend", "tests.support.fake_backend:FakeBackend")


def make_sandbox(*services: Service | str, token: str = TOKEN, seed: int = 0) -> Sandbox:
    urls = [service if isinstance(service, str) else service.url for service in services]
    return Sandbox(urls, token, rng=random.Random(seed))


def programs(*codes: str) -> list[Program]:
    return [Program(code=code) for code in codes]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@asynccontextmanager
async def http_server(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server that says it is healthy and has 4 slots, and answers requests by `handle`; yields its URL."""

    async def healthz(request: web.Request) -> web.Response:
        health = {"status": "ok", "tier": "T9", "backend": "", "slots": 4, "queued": 0, "in_flight": 0, "version": ""}
        return web.json_response(health)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_program_comes_back_with_what_it_did() -> None:
    backend = FakeBackend()
    async with serving(backend, node="n") as service, make_sandbox(service) as sandbox:
        result = await sandbox.run(
            "print 42", stdin="in", args=["-v"], files={"a": b"\xff"}, limits=Limits(cpu_seconds=3)
        )
        wrong = await sandbox.run("exit 3")

    assert (result.status, result.stdout, result.node) == (Status.OK, "42", "n")
    assert (wrong.status, wrong.exit_code) == (Status.ERROR, 3)
    assert backend.started[0] == Program(
        code="print 42", stdin="in", args=("-v",), files={"a": b"\xff"}, limits=Limits(cpu_seconds=3)
    )


async def test_results_come_in_the_order_of_the_programs() -> None:
    async with serving(FakeBackend(num_slots=8)) as service, make_sandbox(service) as sandbox:
        results = await sandbox.run_many(programs("sleep 0.2", *(f"print {number}" for number in range(300))))

    assert [result.stdout for result in results] == ["", *map(str, range(300))]


async def test_the_callers_errors_are_raised_at_once() -> None:
    backend = FakeBackend()
    async with serving(backend) as service, make_sandbox(service) as sandbox:
        with pytest.raises(SandboxRequestError, match=r"limits.wall_seconds must be from 0.01 to 600.0, got 9999"):
            await sandbox.run("x", limits=Limits(wall_seconds=9999))
        with pytest.raises(SandboxRequestError, match="lone surrogate"):
            await sandbox.run("print \ud800")
        with pytest.raises(SandboxRequestError, match="as JSON is larger than"):
            await sandbox.run("x", stdin="\0" * 8_000_000)
        with pytest.raises(SandboxRequestError, match="language 'klingon' is not known"):
            await sandbox.run("klingon")

    assert len(backend.started) == 1


async def test_a_wrong_token_is_the_callers_error() -> None:
    async with serving(FakeBackend()) as service, make_sandbox(service, token="another token") as sandbox:
        with pytest.raises(SandboxRequestError, match="its token is not the service's"):
            await sandbox.run("print 1")


def test_urls_without_a_token_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_PIVOT_SANDBOX_URLS", "http://127.0.0.1:1, http://127.0.0.1:2")
    monkeypatch.delenv("VERL_PIVOT_SANDBOX_TOKEN", raising=False)

    with pytest.raises(ConfigError, match="token is missing; set VERL_PIVOT_SANDBOX_TOKEN"):
        Sandbox()


async def test_urls_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(FakeBackend()) as service:
        monkeypatch.setenv("VERL_PIVOT_SANDBOX_URLS", f" {service.url}/ ,")
        monkeypatch.setenv("VERL_PIVOT_SANDBOX_TOKEN", TOKEN)
        async with Sandbox() as sandbox:
            assert (await sandbox.run("print 1")).stdout == "1"


async def test_failures_of_the_system_are_tried_again() -> None:
    backend = FakeBackend()
    async with serving(backend) as service, make_sandbox(service) as sandbox:
        result = await sandbox.run("break-once", stdin="a")

    assert result.status is Status.OK
    assert len(backend.started) == 2


async def test_a_program_that_breaks_the_sandbox_is_given_up() -> None:
    backend = FakeBackend()
    async with serving(backend) as service, make_sandbox(service) as sandbox:
        with pytest.raises(SandboxError, match=r"failed repeatedly on this program; 4 attempts, .*the lane died"):
            await sandbox.run("break")

    assert len(backend.started) == 4


async def test_after_the_deadline_the_error_names_the_attempts() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with make_sandbox(nowhere) as sandbox:
        with pytest.raises(
            SandboxError, match=rf"no result within 0.3 s; 0 attempts, the latest: {nowhere}: .*Connect call failed"
        ):
            await sandbox.run("print 1", deadline_seconds=0.3)


async def test_after_the_deadline_the_program_is_ended() -> None:
    backend = FakeBackend()
    async with serving(backend) as service, make_sandbox(service) as sandbox:
        with pytest.raises(SandboxError, match=r"no result within 0.2 s; 1 attempts"):
            await sandbox.run("hang", deadline_seconds=0.2)
        await until(lambda: backend.killed == ["hang"])


async def test_cancelling_a_call_ends_its_program_and_no_other() -> None:
    backend = FakeBackend(num_slots=8)
    async with serving(backend) as service, make_sandbox(service) as sandbox:
        await sandbox.run("print 0")
        calls = [asyncio.create_task(sandbox.run(code)) for code in ("sleep 0.5", "hang", "sleep 0.6")]
        await until(lambda: backend.num_running == 3)
        calls[1].cancel()
        await until(lambda: backend.killed == ["hang"])
        assert [(await calls[0]).status, (await calls[2]).status] == [Status.OK, Status.OK]
        with pytest.raises(asyncio.CancelledError):
            await calls[1]


def test_a_second_event_loop_is_refused() -> None:
    sandbox = make_sandbox(f"http://127.0.0.1:{free_port()}")
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    with pytest.raises(SandboxError, match="no result within"):
        first.run_until_complete(sandbox.run("print 1", deadline_seconds=0.05))
    with pytest.raises(SandboxRequestError, match="second event loop; make one Sandbox for each"):
        second.run_until_complete(sandbox.run("print 1"))
    first.run_until_complete(sandbox.close())
    first.close()
    second.close()


async def test_closing_ends_everything() -> None:
    backend = FakeBackend(num_slots=2)
    async with serving(backend) as service:
        sandbox = make_sandbox(service)
        call = asyncio.create_task(sandbox.run_many(programs(*["hang"] * 10)))
        await until(lambda: backend.num_running == 2)
        await sandbox.close()
        await sandbox.close()
        await until(lambda: backend.killed == ["hang", "hang"] and backend.num_running == 0)
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(SandboxRequestError, match="this Sandbox is closed"):
            await sandbox.run("print 1")


async def test_one_failure_ends_the_rest_of_its_batch() -> None:
    backend = FakeBackend(num_slots=8)
    async with serving(backend) as service, make_sandbox(service) as sandbox:
        with pytest.raises(SandboxRequestError, match="klingon"):
            await sandbox.run_many(programs("hang", "klingon", "hang"))
        await until(lambda: backend.num_running == 0)

    assert backend.killed == ["hang", "hang"]


async def test_a_full_service_gets_fewer_requests_and_every_call_gets_its_result() -> None:
    backend = FakeBackend(num_slots=4)
    async with serving(backend, limits=ServiceLimits(max_queued=8)) as service:
        sandboxes = [make_sandbox(service, seed=seed) for seed in range(8)]
        codes = [[f"print {seed}-{number}" for number in range(200)] for seed in range(8)]
        results = await asyncio.gather(
            *(sandbox.run_many(programs(*code)) for sandbox, code in zip(sandboxes, codes, strict=True))
        )
        for sandbox in sandboxes:
            await sandbox.close()

    assert [[f"print {result.stdout}" for result in answered] for answered in results] == codes
    assert Counter(program.code for program in backend.started) == Counter(code for part in codes for code in part)


async def test_64_clients_get_each_result_once() -> None:
    backend, rng = FakeBackend(num_slots=16), random.Random(0)
    async with serving(backend) as service:
        sandboxes = [make_sandbox(service, seed=seed) for seed in range(64)]

        async def call(sandbox: Sandbox, name: str) -> bool:
            code = rng.choice([f"print {name}", f"sleep 0.00{rng.randrange(10)}", f"exit {rng.randrange(1, 255)}"])
            result = await sandbox.run(code, stdin=name)
            expected = {
                "print": (0, name),
                "sleep": (0, ""),
                "exit": (int(code.split()[1]) if "exit" in code else 0, ""),
            }
            return (result.exit_code, result.stdout) == expected[code.split()[0]]

        names = [(sandbox, f"{index}-{number}") for index, sandbox in enumerate(sandboxes) for number in range(60)]
        right = await asyncio.gather(*(call(sandbox, name) for sandbox, name in names))
        for sandbox in sandboxes:
            await sandbox.close()

    assert right == [True] * len(names)
    assert sorted(program.stdin for program in backend.started) == sorted(name for _, name in names)


async def test_a_service_that_dies_and_comes_back_runs_each_call_once_itself() -> None:
    first, second, port = FakeBackend(num_slots=4), FakeBackend(num_slots=4), free_port()
    async with make_sandbox(f"http://127.0.0.1:{port}") as sandbox:
        async with serving(first, port=port):
            calls = asyncio.create_task(sandbox.run_many(programs(*(f"sleep 0.0{number}" for number in range(10, 60)))))
            await until(lambda: len(first.started) >= 10)
        async with serving(second, port=port):
            results = await calls

    runs = [Counter(program.code for program in backend.started) for backend in (first, second)]
    assert [result.status for result in results] == [Status.OK] * 50
    assert max(runs[0].values()) == max(runs[1].values()) == 1
    assert set(runs[0]) | set(runs[1]) == {f"sleep 0.0{number}" for number in range(10, 60)}


async def test_a_batch_that_breaks_off_is_completed_by_id() -> None:
    """Half of the lines arrive, in another order, with one for an unknown id; then the connection ends."""
    seen: list[list[str]] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["requests"]
        seen.append([item["id"] for item in asked])
        response = web.StreamResponse()
        await response.prepare(request)
        lines = [
            f'{{"id": "{item["id"]}", "result": {{"status": "ok", "stdout": "{item["program"]["code"]}"}}}}\n'
            for item in reversed(asked)
        ]
        if len(seen) == 1:
            lines = [*lines[: len(lines) // 2], '{"id": "999", "result": {"status": "error"}}\n', lines[-1][:20]]
        await response.write("".join(lines).encode())
        return response

    async with http_server(handle) as url, make_sandbox(url) as sandbox:
        results = await sandbox.run_many(programs(*"abcdefgh"))

    assert [result.stdout for result in results] == list("abcdefgh")
    assert len(seen[0]) == len(set(seen[0]))
    assert all(len(ids) == len(set(ids)) for ids in seen)


@pytest.mark.parametrize("body", [b"hello\n", b'{"id": 1}\n', b'{"id": "0"}\n', b"\xff\n", b""])
async def test_an_answer_that_cannot_be_read_is_a_failure_of_the_node(body: bytes) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    async with http_server(handle) as url, make_sandbox(url) as sandbox:
        with pytest.raises(SandboxError, match=rf"no result within 0.3 s; [0-9]+ attempts, the latest: {url}: "):
            await sandbox.run("print 1", deadline_seconds=0.3)


async def test_calls_go_to_the_nodes_that_answer() -> None:
    backends = [FakeBackend(), FakeBackend()]
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with (
        serving(backends[0]) as first,
        serving(backends[1]) as second,
        make_sandbox(first, nowhere, second) as sandbox,
    ):
        await sandbox.run_many(programs(*["sleep 0.01"] * 200))

    shares = [len(backend.started) for backend in backends]
    assert sum(shares) == 200
    assert min(shares) > 50


async def test_calls_of_a_node_that_stops_move_to_another() -> None:
    backends = [FakeBackend(), FakeBackend()]
    async with serving(backends[1]) as second:
        async with serving(backends[0]) as first:
            sandbox = make_sandbox(first, second)
            calls = asyncio.create_task(sandbox.run_many(programs(*["sleep 0.02"] * 100)))
            await until(lambda: len(backends[0].started) > 5)
        results = await calls
        await sandbox.close()

    assert [result.status for result in results] == [Status.OK] * 100


async def test_an_open_breaker_is_closed_by_a_healthy_probe() -> None:
    num_broken = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal num_broken
        num_broken += 1
        if num_broken <= 5:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        asked = (await request.json())["requests"]
        return web.Response(text="".join(f'{{"id": "{item["id"]}", "result": {{"status": "ok"}}}}\n' for item in asked))

    async with http_server(handle) as url, make_sandbox(url) as sandbox:
        assert (await sandbox.run("print 1")).status is Status.OK

    assert num_broken == 6


async def test_a_session_keeps_its_state_and_forks() -> None:
    async with serving(FakeBackend()) as service, make_sandbox(service) as sandbox:
        async with await sandbox.open() as session:
            first = await session.run("print a")
            branch = await session.fork()
            second = await session.run("print b")
            other = await branch.run("print c")
            await branch.close()
        with pytest.raises(SandboxRequestError, match="is closed; open another"):
            await session.run("print d")

    assert (first.value, second.value, other.value) == ("1", "2", "2")


async def test_a_session_goes_on_after_its_interpreter_was_killed() -> None:
    async with serving(FakeBackend()) as service, make_sandbox(service) as sandbox:
        session = await sandbox.open()
        await session.run("print a")
        killed = await session.run("kill")
        after = await session.run("print b")

    assert killed.status is Status.SESSION_KILLED
    assert (session.epoch, after.value) == (2, "1")


async def test_a_lost_session_is_never_silent() -> None:
    backend, port = FakeBackend(), free_port()
    async with make_sandbox(f"http://127.0.0.1:{port}") as sandbox:
        async with serving(backend, port=port):
            session = await sandbox.open()
            with pytest.raises(SessionLostError, match="its interpreter died"):
                await session.run("lose")
            await session.run("print a")
        with pytest.raises(SessionLostError, match=r"is lost with its node"):
            await session.run("print b")
        async with serving(FakeBackend(), port=port):
            with pytest.raises(SessionLostError, match=r"is lost: session_not_found"):
                await session.run("print b")


async def test_a_session_takes_one_cell_at_a_time() -> None:
    backend = FakeBackend()
    async with serving(backend) as service, make_sandbox(service) as sandbox:
        session = await sandbox.open()
        first = asyncio.create_task(session.run("sleep 0.2"))
        await until(lambda: backend.num_running == 1)
        with pytest.raises(SandboxRequestError, match="is running another cell"):
            await session.run("print a")
        assert (await first).status is Status.OK


async def test_a_cell_beyond_its_deadline_is_ended() -> None:
    backend = FakeBackend()
    async with serving(backend) as service, make_sandbox(service) as sandbox:
        session = await sandbox.open()
        with pytest.raises(SandboxError, match=r"no answer within 0.2 s in 1 attempts"):
            await session.run("hang", deadline_seconds=0.2)
        await until(lambda: backend.killed == ["hang"])


async def test_sessions_are_opened_where_there_is_room() -> None:
    async with (
        serving(FakeBackend(), max_sessions=0) as full,
        serving(FakeBackend()) as free,
        make_sandbox(full, free) as sandbox,
    ):
        sessions = [await sandbox.open() for _ in range(5)]
        nodes = {(await session.run("print 1")).node for session in sessions}

    assert nodes == {free.url.removeprefix("http://")}


async def test_the_error_of_a_session_that_no_node_opened_says_why() -> None:
    async with serving(FakeBackend(), max_sessions=0) as full, make_sandbox(full) as sandbox:
        with pytest.raises(SandboxError, match=r"no answer within 0.3 s in 1 attempts; .*of 0 at most; close some"):
            await sandbox.open(deadline_seconds=0.3)


@pytest.mark.slow
async def test_nothing_configured_starts_a_service_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_PIVOT_SANDBOX_URLS", raising=False)
    async with Sandbox(serve_arguments=FAKE) as first, Sandbox(serve_arguments=FAKE) as second:
        nodes = {(await sandbox.run("print 1")).node for sandbox in (first, second)}
        (service,) = local_service.running()
        pid = service.pid
        assert pid is not None

    assert len(nodes) == 1
    assert local_service.running() == ()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.heavy
async def test_a_first_call_that_is_cancelled_gives_the_service_back_once_it_has_started() -> None:
    async with Sandbox(serve_arguments=FAKE) as sandbox:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run("print a"), 0.05)
    (service,) = local_service.running()

    await until(lambda: local_service.running() == ())
    await until(lambda: service.pid is not None and not psutil.pid_exists(service.pid))


@pytest.mark.slow
async def test_a_local_service_that_is_killed_is_started_again() -> None:
    async with Sandbox((), serve_arguments=FAKE) as sandbox:
        await sandbox.run("print 1")
        (service,) = local_service.running()
        assert service.pid is not None
        calls = asyncio.create_task(sandbox.run_many(programs(*["sleep 0.05"] * 50)))
        await asyncio.sleep(0.2)
        os.kill(service.pid, signal.SIGKILL)
        results = await calls

    assert [result.status for result in results] == [Status.OK] * 50


@pytest.mark.slow
async def test_a_local_service_ends_with_a_process_that_is_killed() -> None:
    code = f"""
import asyncio
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.local_service import running

async def main():
    async with Sandbox((), serve_arguments={FAKE!r}) as sandbox:
        await sandbox.run("print 1")
        print(running()[0].pid, flush=True)
        await sandbox.run("hang")

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    assert psutil.pid_exists(pid)
    process.kill()
    await process.wait()

    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow
async def test_a_local_service_that_cannot_start_says_why() -> None:
    async with Sandbox((), serve_arguments=("--backend", "docker")) as sandbox:
        with pytest.raises(SandboxError, match="did not start: error: unknown backend 'docker'"):
            await sandbox.run("print 1")
