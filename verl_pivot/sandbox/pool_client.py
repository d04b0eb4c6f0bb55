"""Client of a foreign pool: Programs -> Results over HTTP, with retries on other servers; it has no sessions."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox import code_judge, sandbox_fusion
from verl_pivot.sandbox.execution import Network, Program, Result
from verl_pivot.sandbox.nodes import backoff_seconds
from verl_pivot.sandbox.pool_answers import PoolFailure
from verl_pivot.sandbox.pool_settings import PoolProtocol, PoolSettings
from verl_pivot.sandbox.wire import encode

CONNECT_SECONDS = 5.0
MAX_ANSWER_BYTES = 64 * 1024**2
REST_SECONDS = 5.0
"""Seconds for which a server that failed gets no requests, unless all servers have failed."""
CODE_JUDGE_CHARACTERS = 1000
"""Characters that code-judge keeps of each output by default."""
_REFUSED = frozenset({400, 401, 403, 404, 405, 413, 422})
"""HTTP statuses after which another attempt would get the same answer."""


class _FinalError(Exception):
    """The pool refuses the request as such: wrong address, token or protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speech:
    """One protocol: path of its requests, and conversions of programs and answers."""

    path: str
    body: Callable[[Program], object]
    read: Callable[[Program, bytes], Result]


@dataclass(slots=True, eq=False)
class _Server:
    """One server of the pool."""

    url: str
    room: asyncio.Semaphore
    num_in_flight: int = 0
    rests_until: float = field(default=float("-inf"))
    """Time on the monotonic clock."""


class PoolClient:
    """Sends programs to a foreign pool. Make one per event loop.

    A program whose call is cancelled may run on: the protocols cannot end a program.
    """

    def __init__(self, settings: PoolSettings, token: str, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._speech = _speech(settings)
        self._servers = [_Server(url.rstrip("/"), asyncio.Semaphore(settings.parallel)) for url in settings.urls]
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._http.close()

    async def run_many(self, programs: Iterable[Program], deadline: float) -> list[Result]:
        """Results in the programs' order.

        Args:
            programs: Programs to run.
            deadline: Time on the monotonic clock.

        Raises:
            SandboxRequestError: If the protocol cannot express one of the programs.
            SandboxError: If the pool came to no result for one of them; the others are given up.
        """
        requests = [(program, self._encoded(program)) for program in programs]
        tasks = [asyncio.create_task(self._run(program, body, deadline)) for program, body in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _encoded(self, program: Program) -> bytes:
        protocol, remedy = self._settings.protocol, "use a service of `verl-pivot sandbox serve`"
        if program.root:
            raise SandboxRequestError(f"{protocol} pools do not support root file systems: {remedy}")
        if program.network is Network.PROXY:
            raise SandboxRequestError(f"{protocol} pools do not support a proxy: {remedy}")
        if program.terminal is not None:
            raise SandboxRequestError(f"{protocol} pools do not support terminals: {remedy}")
        return encode(self._speech.body(program))

    async def _run(self, program: Program, body: bytes, deadline: float) -> Result:
        problems: list[str] = []
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                for attempt in range(1, self._settings.retries + 2):
                    async with self._chosen() as server:
                        try:
                            return self._speech.read(program, await self._post(server, program, body))
                        except PoolFailure as failure:
                            problems.append(f"{server.url}: {failure}")
                    await asyncio.sleep(backoff_seconds(attempt, None, self._rng))
        except _FinalError as error:
            raise SandboxError(str(error)) from error
        except TimeoutError as error:
            raise SandboxError(f"the pool gave no result before the deadline; {_latest(problems)}") from error
        raise SandboxError(f"the pool failed {len(problems)} times; {_latest(problems)}")

    @asynccontextmanager
    async def _chosen(self) -> AsyncIterator[_Server]:
        """Server for one attempt, once it has room: the least loaded of those that have not just failed."""
        now = time.monotonic()
        server = min(self._servers, key=lambda each: (each.rests_until > now, each.num_in_flight, self._rng.random()))
        server.num_in_flight += 1
        try:
            async with server.room:
                yield server
        finally:
            server.num_in_flight -= 1

    async def _post(self, server: _Server, program: Program, body: bytes) -> bytes:
        """Answer of a server.

        Raises:
            PoolFailure: If another attempt may succeed.
            _FinalError: If another attempt would fail too.
        """
        own_seconds = program.limits.wall_seconds + (program.compile_seconds or sandbox_fusion.COMPILE_SECONDS)
        timeout = aiohttp.ClientTimeout(total=own_seconds + self._settings.queue_seconds, sock_connect=CONNECT_SECONDS)
        headers = {"Content-Type": "application/json"}
        url = server.url + self._speech.path
        try:
            async with self._http.post(url, data=body, headers=headers, timeout=timeout) as answer:
                text = await _bounded(answer.content)
                status = answer.status
        except TimeoutError as error:
            server.rests_until = time.monotonic() + REST_SECONDS
            raise PoolFailure(f"no answer within {timeout.total:g} s") from error
        except aiohttp.ClientError as error:
            server.rests_until = time.monotonic() + REST_SECONDS
            raise PoolFailure(f"{type(error).__name__}: {error}") from error
        if status == 200:
            return text
        if status in _REFUSED:
            raise _FinalError(
                f"{url} refused the request with {status}: {text[:200]!r}; check the pool's address, protocol "
                f"({self._settings.protocol}) and token"
            )
        server.rests_until = time.monotonic() + REST_SECONDS
        raise PoolFailure(f"it answered {status}: {text[:200]!r}")


def _speech(settings: PoolSettings) -> _Speech:
    if settings.protocol is PoolProtocol.SANDBOX_FUSION:
        return _Speech(
            path=sandbox_fusion.PATH,
            body=sandbox_fusion.run_code_body,
            read=sandbox_fusion.read_run_code_answer,
        )
    max_characters = settings.max_output_characters or CODE_JUDGE_CHARACTERS
    return _Speech(
        path=code_judge.PATH,
        body=code_judge.submission_body,
        read=partial(code_judge.read_submission_answer, max_characters=max_characters),
    )


async def _bounded(stream: aiohttp.StreamReader) -> bytes:
    """Whole body of an answer; raises PoolFailure if it is longer than MAX_ANSWER_BYTES."""
    pieces, num_bytes = [], 0
    async for piece in stream.iter_any():
        num_bytes += len(piece)
        if num_bytes > MAX_ANSWER_BYTES:
            raise PoolFailure(f"its answer is longer than {MAX_ANSWER_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _latest(problems: list[str]) -> str:
    return f"the latest: {problems[-1]}" if problems else "no server was free"
