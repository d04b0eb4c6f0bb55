"""The sandbox's client: programs and cells in, Results out, over one node or many."""

import asyncio
import os
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from uuid import uuid4

from verl_pivot.errors import ConfigError, SandboxError, SandboxRequestError
from verl_pivot.sandbox.execution import Limits, Network, Program, Result
from verl_pivot.sandbox.following import Follower, first_nodes
from verl_pivot.sandbox.local_service import LocalService, acquire, release
from verl_pivot.sandbox.nodes import TOKEN_VARIABLE, URLS_VARIABLE, Discovery, Node
from verl_pivot.sandbox.sender import Sender
from verl_pivot.sandbox.session import Asker, Session, open_session
from verl_pivot.sandbox.transport import Transport
from verl_pivot.sandbox.wire import encode

DEADLINE_SECONDS = 120.0
"""Of a call as a whole: queues, retries and the program itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """What exists between the first call and close()."""

    nodes: list[Node]
    """Shared with the parts below; a follower changes it."""
    transport: Transport
    sender: Sender
    asker: Asker
    follower: Follower | None
    local: LocalService | None
    loop: asyncio.AbstractEventLoop


class Sandbox:
    """Runs programs in isolation; one per event loop, shared by all its tasks.

    Nodes come from the first of these that is there:
    1. `urls` (token from `token` or VERL_PIVOT_SANDBOX_TOKEN), or `discovery`, which is asked again and again;
    2. VERL_PIVOT_SANDBOX_URLS, comma separated, and VERL_PIVOT_SANDBOX_TOKEN;
    3. in a process connected to Ray: what `verl-pivot sandbox start --ray` keeps on the cluster, under the name in
       VERL_PIVOT_SANDBOX_NAME or "default"; nodes that join or leave are followed;
    4. a service on this machine, started for the process at the first call with `serve_arguments` for
       `verl-pivot sandbox serve`, and ended with its last Sandbox.

    Example:
        async with Sandbox() as sandbox:
            result = await sandbox.run("print(6 * 7)")
            assert result.stdout == "42\\n"
    """

    def __init__(
        self,
        urls: Sequence[str] | None = None,
        token: str | None = None,
        *,
        discovery: Discovery | None = None,
        serve_arguments: Sequence[str] = (),
        rng: random.Random | None = None,
    ) -> None:
        if urls and discovery is not None:
            raise ConfigError("urls= and discovery= are given; leave one of them out")
        is_told = urls is not None or discovery is not None
        listed = urls or () if is_told else os.environ.get(URLS_VARIABLE, "").split(",")
        self._urls = tuple(url.strip().rstrip("/") for url in listed if url.strip())
        self._token = token or os.environ.get(TOKEN_VARIABLE, "")
        if self._urls and not self._token:
            raise ConfigError(f"the sandbox's token is missing; set {TOKEN_VARIABLE}, or give token=")
        self._discovery = discovery
        self._serve_arguments = tuple(serve_arguments)
        self._rng = rng or random.Random()
        self._connecting: asyncio.Lock | None = None
        self._connection: _Connection | None = None
        self._is_closed = False

    async def __aenter__(self) -> "Sandbox":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        code: str,
        *,
        language: str = "python",
        stdin: str = "",
        args: Sequence[str] = (),
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        limits: Limits = Limits(),  # noqa: B008  frozen
        network: Network = Network.NONE,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Result:
        """Run one program; how it ended is in the Result, whatever it did. Cancelling the call ends the program.

        Raises:
            SandboxRequestError: If what is asked for is not allowed.
            SandboxError: If no node came to a result until the deadline.
        """
        program = Program(
            code=code,
            language=language,
            stdin=stdin,
            args=tuple(args),
            files=files or {},
            fetch=tuple(fetch),
            limits=limits,
            network=network,
        )
        (result,) = await self.run_many([program], deadline_seconds=deadline_seconds)
        return result

    async def run_many(
        self, programs: Iterable[Program], *, deadline_seconds: float = DEADLINE_SECONDS
    ) -> list[Result]:
        """The result of each program, in order; raises as `run` does for the first that has none, and ends the rest."""
        deadline = time.monotonic() + deadline_seconds
        sender = (await self._connected(deadline)).sender
        futures: list[asyncio.Future[Result]] = []
        try:
            for program in programs:
                futures.append(await sender.submit(encode(program), deadline, deadline_seconds))
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # it was looked at: asyncio must not report it as forgotten

    async def open(
        self,
        *,
        limits: Limits = Limits(),  # noqa: B008  frozen
        network: Network = Network.NONE,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Session:
        """Start a Python interpreter that keeps its variables; `limits` hold for the whole session.

        Raises:
            SandboxRequestError: If what is asked for is not allowed.
            SandboxError: If no node opened it until the deadline.
        """
        connection = await self._connected(time.monotonic() + deadline_seconds)
        return await open_session(
            connection.asker, connection.nodes, limits=limits, network=network, deadline_seconds=deadline_seconds
        )

    async def close(self) -> None:
        """Cancel what is under way and let the nodes go; harmless to repeat."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            if connection.follower is not None:
                await connection.follower.stop()
            await connection.sender.close()
            await connection.transport.close()
            if connection.local is not None:
                await asyncio.to_thread(release, connection.local)

    async def _connected(self, deadline: float) -> _Connection:
        if self._connection is not None:
            if self._connection.loop is not asyncio.get_running_loop():
                raise SandboxRequestError("this Sandbox is used from a second event loop; make one for each")
            return self._connection
        self._connecting = self._connecting or asyncio.Lock()
        try:
            async with asyncio.timeout_at(deadline), self._connecting:
                if self._is_closed:
                    raise SandboxRequestError("this Sandbox is closed; make another")
                self._connection = self._connection or await self._connect()
        except TimeoutError as error:
            message = "no sandbox service was ready before the deadline: see `verl-pivot doctor`"
            raise SandboxError(f"{message}, or on Ray `verl-pivot sandbox status --ray`") from error
        return self._connection

    async def _connect(self) -> _Connection:
        discovery, local = self._discovery, None
        if not self._urls:
            discovery = discovery or await _ray_discovery()
        if self._urls:
            nodes = [Node(url, self._token) for url in self._urls]
        elif discovery is not None:
            nodes = await first_nodes(discovery)
        else:
            local = await asyncio.to_thread(acquire, self._serve_arguments)
            nodes = [Node(local.url, local.token)]
        client = uuid4().hex
        transport = Transport(nodes, self._rng)
        return _Connection(
            nodes=nodes,
            transport=transport,
            sender=Sender(client, nodes, transport, self._rng),
            asker=Asker(client=client, transport=transport, rng=self._rng),
            follower=None if discovery is None else Follower(discovery, nodes, transport),
            local=local,
            loop=asyncio.get_running_loop(),
        )


async def _ray_discovery() -> Discovery | None:
    """None where this process is not connected to Ray, or nobody keeps services on its cluster."""
    if "ray" not in sys.modules:
        return None
    from verl_pivot.cluster.ray_nodes import find_discovery

    return await asyncio.to_thread(find_discovery)
