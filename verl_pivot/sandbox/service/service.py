"""The HTTP service of one node: requests -> Executions -> answers, line by line; wire.py has the bodies."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec
from aiohttp import web

import verl_pivot
from verl_pivot.errors import ConfigError, SandboxError, SandboxRequestError
from verl_pivot.sandbox import sandbox_fusion
from verl_pivot.sandbox.failures import Failure, FailureKind
from verl_pivot.sandbox.service.admission import AdmissionError, check_token, read_body
from verl_pivot.sandbox.service.backend import Backend
from verl_pivot.sandbox.service.cell_socket_server import AskClient, CellSocketServer
from verl_pivot.sandbox.service.executions import Execution, ExecutionTable
from verl_pivot.sandbox.service.metrics import Metrics
from verl_pivot.sandbox.service.outbox import Outbox
from verl_pivot.sandbox.service.run_code import refusal, run_code_execution, run_code_response
from verl_pivot.sandbox.service.session_table import SessionTable
from verl_pivot.sandbox.service.settings import ServiceSettings
from verl_pivot.sandbox.service.streamed_requests import StreamedRequests
from verl_pivot.sandbox.wire import (
    HEARTBEAT_SECONDS,
    LOAD_HEADER,
    MAX_BODY_BYTES,
    BatchItem,
    CancelBody,
    CellBody,
    ForkBody,
    Health,
    OpenBody,
    StreamBody,
    TypeBody,
    Typed,
    decode,
    decode_batch,
    encode_line,
)

logger = logging.getLogger(__name__)
IDLE_CONNECTION_SECONDS = 75.0
"""Seconds until a connection without a request is closed; headers must arrive in this time too."""
MAX_GATHER_SECONDS = 0.05
"""Most seconds for which a busy service gathers lines before it writes them."""
CLOSE_IDLE_EVERY_SECONDS = 5.0
OPEN_PATHS = ("/healthz", "/metrics")
"""Paths that need no token."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Service:
    """The service of one node: call `start`, then `stop`."""

    def __init__(self, settings: ServiceSettings, backend: Backend) -> None:
        self.stop_requested = asyncio.Event()
        self.metrics = Metrics()
        self.port = settings.port
        self._settings = settings
        self._backend = backend
        self._authorization = f"Bearer {settings.token}".encode()
        self._stopping = False

    @property
    def url(self) -> str:
        return f"http://{self._settings.host}:{self.port}"

    async def start(self) -> None:
        """Start the backend and listen; returns when requests are answered.

        Raises:
            ConfigError: If it cannot listen on its host and port.
        """
        await self._backend.start()
        settings = self._settings
        self._executions = ExecutionTable(self._backend.num_slots, settings.limits, self.metrics)
        self._sessions = SessionTable(
            self._backend,
            self._executions,
            self.metrics,
            max_sessions=settings.max_sessions,
            idle_seconds=settings.session_idle_seconds,
        )
        self._streams = StreamedRequests(self._backend, self._sessions)
        self._watch()
        self._runner = web.AppRunner(
            self._app(),
            handler_cancellation=True,
            keepalive_timeout=IDLE_CONNECTION_SECONDS,
            access_log=None,
            auto_decompress=False,
            shutdown_timeout=2.0,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, settings.host, settings.port, backlog=1024).start()
        except OSError as error:
            await self._runner.cleanup()
            await self._backend.stop()
            place = f"{settings.host}:{settings.port}"
            raise ConfigError(f"cannot listen on {place}: {error}; choose another --host or --port") from error
        self.port = self._runner.addresses[0][1]
        self._executions.node = settings.node or f"{settings.host}:{self.port}"
        self._closing_idle = asyncio.create_task(self._close_idle())

    def _watch(self) -> None:
        executions, watch = self._executions, self.metrics.watch
        watch("sandbox_queued", "Requests that wait", lambda: executions.num_queued)
        watch("sandbox_in_flight", "Requests that run", lambda: executions.num_running)
        watch("sandbox_slots", "Requests that may run at once", lambda: executions.num_slots)
        watch("sandbox_held_bytes", "Bytes of requests and unread results", lambda: executions.budget.used)
        watch("sandbox_sessions_open", "Open sessions", lambda: len(self._sessions))

    async def stop(self) -> None:
        """Refuse new requests, give running ones `drain_seconds`, then end every process that was started."""
        self._stopping = True
        await self._executions.drain(self._settings.drain_seconds)
        self._closing_idle.cancel()
        await self._runner.cleanup()
        await self._backend.stop()

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(CLOSE_IDLE_EVERY_SECONDS)
            try:
                await self._sessions.close_idle()
            except SandboxError:
                logger.exception("an idle session could not be closed")

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_post("/v1/run", self._run)
        app.router.add_post(sandbox_fusion.PATH, self._run_code)
        app.router.add_post("/v1/stream", self._stream_program)
        app.router.add_post("/v1/type", self._type)
        app.router.add_post("/v1/cancel", self._cancel)
        app.router.add_post("/v1/stop", self._stop_request)
        app.router.add_post("/v1/sessions", self._open)
        app.router.add_post("/v1/sessions/{id}/run", self._cell)
        app.router.add_post("/v1/sessions/{id}/stream", self._stream_cell)
        sockets = CellSocketServer(self._cell_line, self._sessions.has_functions)
        app.on_shutdown.append(sockets.close)
        app.router.add_get("/v1/sessions/{id}/cells", sockets.handle)
        app.router.add_post("/v1/sessions/{id}/fork", self._fork)
        app.router.add_delete("/v1/sessions/{id}", self._close)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the token before anything else, and give every refusal the same form."""
        try:
            if not (request.path in OPEN_PATHS and request.method == "GET"):
                check_token(request, self._authorization)
            return await handler(request)
        except AdmissionError as error:
            self.metrics.failed(error.failure)
            return _json(encode_line(None, error.failure), status=error.status)
        except SandboxRequestError as error:
            self.metrics.failed(_invalid(error))
            return _json(encode_line(None, _invalid(error)), status=400)

    async def _read(self, request: web.Request) -> bytes:
        body = await read_body(request, self._executions.budget, self._settings.body_seconds)
        self.metrics.request_bytes.inc(len(body))
        return body

    async def _run(self, request: web.Request) -> web.StreamResponse:
        batch = decode_batch(await self._read(request))
        outbox = Outbox(len(batch.items) + len(batch.refused), self._executions.budget)
        try:
            for request_id, failure in batch.refused:
                self._executions.refuse(request_id, failure, outbox)
            for item in batch.items:
                self._executions.submit(self._execution(batch.client, item), outbox)
            return await self._stream(request, outbox)
        finally:
            if outbox.num_missing:
                self._executions.leave(outbox, batch.client, [item.id for item in batch.items])
            outbox.close()

    def _execution(self, client: str, item: BatchItem) -> Execution:
        program, backend = item.program, self._backend
        return Execution(
            client=client,
            id=item.id,
            fingerprint=item.fingerprint,
            num_bytes=item.num_bytes,
            deadline=time.monotonic() + item.deadline_seconds,
            start=lambda: backend.run(program),
        )

    async def _stream(self, request: web.Request, outbox: Outbox) -> web.StreamResponse:
        load = self._executions.num_queued + self._executions.num_running
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", LOAD_HEADER: str(load)})
        await response.prepare(request)
        while not outbox.is_finished:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    data = await outbox.take()
            except TimeoutError:
                data = b"\n"
            await self._write(request, response, data)
            outbox.sent()
            if outbox.num_missing:  # gather lines: on a busy service, one write per line would cost more than the line
                await asyncio.sleep(min(self._executions.wait_seconds() / 20, MAX_GATHER_SECONDS))
        await response.write_eof()
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        """Write to a client; one that does not read in time is cut off."""
        try:
            async with asyncio.timeout(self._settings.write_seconds):
                await response.write(data)
        except TimeoutError as error:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client did not read its results") from error
        self.metrics.response_bytes.inc(len(data))

    async def _run_code(self, request: web.Request) -> web.Response:
        text = await self._read(request)
        try:
            body, program = sandbox_fusion.decode_run_code_body(text)
        except SandboxRequestError as error:
            self.metrics.failed(_invalid(error))
            return refusal(error)
        execution = run_code_execution(program, len(text), request.remote, self._backend)
        return run_code_response(body, await self._line(execution))

    async def _stream_program(self, request: web.Request) -> web.StreamResponse:
        text = await self._read(request)
        outbox = Outbox(1, self._executions.budget)
        execution = self._streams.program(decode(text, StreamBody, "the body"), len(text), outbox)
        return await self._stream_one(request, execution, outbox)

    async def _stream_cell(self, request: web.Request) -> web.StreamResponse:
        body = decode(await self._read(request), CellBody, "the body")
        outbox = Outbox(1, self._executions.budget)
        return await self._stream_one(request, self._streams.cell(request.match_info["id"], body, outbox), outbox)

    async def _stream_one(
        self, request: web.Request, execution: Execution | Failure, outbox: Outbox
    ) -> web.StreamResponse:
        with self._submitted(execution, outbox):
            return await self._stream(request, outbox)

    async def _type(self, request: web.Request) -> web.Response:
        body = decode(await self._read(request), TypeBody, "the body")
        return _json(msgspec.json.encode(Typed(typed=self._streams.type_in(body))))

    async def _cancel(self, request: web.Request) -> web.Response:
        body = decode(await self._read(request), CancelBody, "the body")
        return _json(msgspec.json.encode({"cancelled": self._executions.cancel(body.client, body.ids)}))

    async def _open(self, request: web.Request) -> web.Response:
        return await self._answer(self._sessions.open(decode(await self._read(request), OpenBody, "the body")))

    async def _cell(self, request: web.Request) -> web.Response:
        body = decode(await self._read(request), CellBody, "the body")
        return await self._answer(self._sessions.run_cell(request.match_info["id"], body))

    async def _cell_line(self, session_id: str, body: bytes, ask: AskClient) -> bytes:
        self.metrics.request_bytes.inc(len(body))
        try:
            cell = self._sessions.run_cell(session_id, decode(body, CellBody, "the message"), ask=ask)
        except SandboxRequestError as error:
            cell = _invalid(error)
        return await self._line(cell)

    async def _fork(self, request: web.Request) -> web.Response:
        body = decode(await self._read(request), ForkBody, "the body")
        return await self._answer(self._sessions.fork(request.match_info["id"], body))

    async def _close(self, request: web.Request) -> web.Response:
        try:
            failure = await self._sessions.close(request.match_info["id"], request.query.get("client", ""))
        except SandboxError as error:
            failure = Failure(kind=FailureKind.SANDBOX_ERROR, message=str(error))
        return _json(b"{}" if failure is None else encode_line(None, failure))

    async def _answer(self, execution: Execution | Failure) -> web.Response:
        return _json(await self._line(execution))

    async def _line(self, execution: Execution | Failure) -> bytes:
        """The line that answers a request, once there is an outcome."""
        outbox = Outbox(1, self._executions.budget)
        with self._submitted(execution, outbox):
            return await outbox.take()

    @contextlib.contextmanager
    def _submitted(self, execution: Execution | Failure, outbox: Outbox) -> Iterator[None]:
        """Submit a request whose answer goes into `outbox`; stop it at the end if nobody else waits for its answer."""
        try:
            if isinstance(execution, Failure):
                self._executions.refuse(None, execution, outbox)
            else:
                self._executions.submit(execution, outbox)
            yield
        finally:
            if outbox.num_missing and isinstance(execution, Execution):
                self._executions.leave(outbox, execution.client, [execution.id])
            outbox.close()

    async def _healthz(self, request: web.Request) -> web.Response:
        health = Health(
            status="draining" if self._stopping else "ok",
            tier=self._backend.tier,
            backend=self._settings.backend_name,
            slots=self._executions.num_slots,
            queued=self._executions.num_queued,
            in_flight=self._executions.num_running,
            version=verl_pivot.__version__,
        )
        return _json(msgspec.json.encode(health), status=503 if self._stopping else 200)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.render(), content_type="text/plain", charset="utf-8")

    async def _stop_request(self, request: web.Request) -> web.Response:
        self.stop_requested.set()
        return _json(b'{"stopping":true}', status=202)


def _invalid(error: SandboxRequestError) -> Failure:
    return Failure(kind=FailureKind.INVALID_REQUEST, message=str(error))


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
