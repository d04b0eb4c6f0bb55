"""Request bodies -> lines of answers, over HTTP; also asks nodes for their health until they can be used."""

import asyncio
import contextlib
import io
import random
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import NoReturn

import aiohttp
import msgspec

from verl_pivot.sandbox.execution import OnOutput
from verl_pivot.sandbox.failures import Failure
from verl_pivot.sandbox.nodes import Node
from verl_pivot.sandbox.wire import (
    HEARTBEAT_SECONDS,
    LOAD_HEADER,
    CancelBody,
    Health,
    Line,
    Typed,
    decode_health,
    decode_line,
    encode,
)

CONNECT_SECONDS = 5.0
"""Seconds to make a connection, and to get the answer to a short request."""
SILENCE_SECONDS = 4 * HEARTBEAT_SECONDS
"""Seconds without a byte of an answer after which a node counts as dead."""
KEEP_ALIVE_SECONDS = 30.0
"""Seconds that an idle connection is kept. The service keeps it longer, so it cannot close it under a request."""
LARGE_BODY_BYTES = 256 * 1024
"""Size from which a body is written piece by piece, so that other requests are served in between."""


class TransportError(Exception):
    """A node did not answer, or not as a sandbox service does; the request itself may be right."""


class RequestRefusedError(Exception):
    """A node refused a request as a whole."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Transport:
    """The connections of one client."""

    def __init__(self, nodes: Sequence[Node], rng: random.Random) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        """Function that is called when a node becomes ready."""
        self.on_trouble: Callable[[], None] = lambda: None
        """Function that is called when a node fails."""
        self._rng = rng
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._stream_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        )
        self._cell_timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._became_ready = asyncio.Event()
        self._sockets: weakref.WeakSet[aiohttp.ClientWebSocketResponse] = weakref.WeakSet()
        self._watches: dict[Node, asyncio.Task[None]] = {}
        for node in nodes:
            self.watch(node)

    async def close(self) -> None:
        tasks = list(self._watches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for socket in tuple(self._sockets):
            await socket.close()
        await self._http.close()

    async def wait_ready(self, nodes: Sequence[Node]) -> None:
        """Wait until one of the nodes is ready."""
        while not any(node.is_ready for node in nodes):
            self._became_ready.clear()
            await self._became_ready.wait()

    async def stream(self, node: Node, path: str, body: bytes, on_output: OnOutput) -> Line:
        """Send a request whose output comes while it runs; returns the last line of the answer.

        Raises:
            TransportError: If the answer breaks off.
        """
        try:
            async with contextlib.aclosing(self.post_batch(node, body, path)) as answer:
                async for lines in answer:
                    for line in lines:
                        if line.output is None:
                            return line
                        await on_output(line.output)
        except RequestRefusedError as error:
            return Line(failure=error.failure)
        raise TransportError("the answer ended early")

    async def type_in(self, node: Node, body: bytes) -> bool:
        """Send keys for a terminal; returns whether its program runs.

        Raises:
            SandboxRequestError: If the node refuses the keys.
            TransportError: If the node does not answer.
        """
        timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
        try:
            async with self._http.post(
                f"{node.url}/v1/type", data=body, headers=_authorization(node), timeout=timeout
            ) as response:
                answer = await response.read()
                if response.status != 200:
                    _refuse(response.status, answer)
                return msgspec.json.decode(answer, type=Typed).typed
        except RequestRefusedError as error:
            raise error.failure.as_error() from error
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise TransportError(_describe(error)) from error

    async def post_batch(self, node: Node, body: bytes, path: str = "/v1/run") -> AsyncGenerator[list[Line]]:
        """Send a batch, or another request with several lines of answer; yields them as they come.

        Raises:
            TransportError: If the answer breaks off.
            RequestRefusedError: If the node refuses the request as a whole.
        """
        try:
            async with self._http.post(
                node.url + path, data=_payload(body), headers=_authorization(node), timeout=self._stream_timeout
            ) as response:
                if response.status != 200:
                    _refuse(response.status, await response.read())
                node.report(int(response.headers.get(LOAD_HEADER, "0")), time.monotonic())
                async for lines in _split(response.content):
                    yield [decode_line(line) for line in lines if line]
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise TransportError(_describe(error)) from error
        node.breaker.succeeded()

    async def post(self, node: Node, path: str, body: bytes) -> Line:
        """Send a session's request; returns its answer, however long that takes. Raises as `post_batch` does."""
        try:
            async with self._http.post(
                node.url + path, data=_payload(body), headers=_authorization(node), timeout=self._cell_timeout
            ) as response:
                answer = await response.read()
                if response.status != 200:
                    _refuse(response.status, answer)
                return decode_line(answer)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise TransportError(_describe(error)) from error

    async def open_socket(self, node: Node, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket; raises aiohttp.ClientError, OSError or TimeoutError if that fails."""
        async with asyncio.timeout(CONNECT_SECONDS):
            socket = await self._http.ws_connect(
                node.url + path,
                headers=_authorization(node),
                max_msg_size=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=0.0),  # a node that runs a cell reads nothing
            )
        self._sockets.add(socket)
        return socket

    async def post_cancel(self, node: Node, client: str, ids: list[str]) -> None:
        """End requests by id; errors are ignored, since a node that misses this only runs the requests in vain."""
        body = encode(CancelBody(client=client, ids=ids))
        with contextlib.suppress(TransportError, RequestRefusedError, TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self.post(node, "/v1/cancel", body)

    async def delete(self, node: Node, path: str) -> None:
        """Send a DELETE; errors are ignored, since the node closes unused sessions by itself."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
            async with self._http.delete(node.url + path, headers=_authorization(node), timeout=timeout) as response:
                await response.read()

    def failed(self, node: Node, problem: str) -> None:
        """Count a failure; after FAILURES_TO_OPEN in a row the node gets no requests until a health probe succeeds."""
        node.last_problem = problem
        node.breaker.failed()
        self.on_trouble()
        if node.breaker.is_open:
            self.watch(node)

    def trip(self, node: Node, problem: str) -> None:
        """Send no more requests to a node that is stopping, until a health probe succeeds."""
        node.last_problem = problem
        node.breaker.trip()
        self.on_trouble()
        self.watch(node)

    def watch(self, node: Node) -> None:
        """Ask a node for its health until it is ready."""
        if node not in self._watches and not node.is_gone:
            self._watches[node] = asyncio.create_task(self._until_ready(node))

    def forget(self, node: Node) -> None:
        """Stop using a node that is no longer in the client's list."""
        node.is_gone = True
        if node in self._watches:
            self._watches.pop(node).cancel()

    async def _until_ready(self, node: Node) -> None:
        while True:
            if node.breaker.num_failures:
                await asyncio.sleep(node.breaker.probe_seconds(self._rng))
            try:
                health = await self._health(node)
            except TransportError as error:
                node.last_problem = str(error)
                node.breaker.failed()
            else:
                node.learn(health.slots)
                del self._watches[node]
                self._became_ready.set()
                self.on_ready()
                return

    async def _health(self, node: Node) -> Health:
        timeout = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
        try:
            async with self._http.get(f"{node.url}/healthz", timeout=timeout) as response:
                body = await response.read()
                if response.status != 200:
                    raise TransportError(f"/healthz answered {response.status}: {body[:200]!r}")
                return decode_health(body)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise TransportError(_describe(error)) from error


def _authorization(node: Node) -> dict[str, str]:
    return {"Authorization": f"Bearer {node.token}"}


def _payload(body: bytes) -> bytes | io.BytesIO:
    return body if len(body) < LARGE_BODY_BYTES else io.BytesIO(body)


async def _split(content: aiohttp.StreamReader) -> AsyncIterator[list[bytes]]:
    """Yield the complete lines of each chunk. The pieces of a long line are joined once, at its end."""
    pieces: list[bytes] = []
    async for chunk in content.iter_any():
        if b"\n" not in chunk:
            pieces.append(chunk)
            continue
        *lines, rest = b"".join([*pieces, chunk]).split(b"\n")
        pieces = [rest]
        yield lines


def _refuse(status: int, answer: bytes) -> NoReturn:
    """Raise the error of an answer whose HTTP status is not 200.

    Raises:
        RequestRefusedError: If the answer is a Failure.
        TransportError: If the answer is anything else.
    """
    failure = decode_line(answer).failure if answer.startswith(b"{") else None
    if failure is None:
        raise TransportError(f"it answered {status}: {answer[:200]!r}; is it a sandbox service?")
    raise RequestRefusedError(failure)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
