"""Client of the sandbox: programs -> Results, and sessions of a Python interpreter, on one node or many."""

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from uuid import uuid4

from verl_pivot.errors import ConfigError, SandboxError, SandboxRequestError
from verl_pivot.sandbox.deadlines import DEADLINE_SECONDS, deadline_for
from verl_pivot.sandbox.discovery import Discovery, NodeFollower, first_nodes
from verl_pivot.sandbox.execution import Limits, Network, OnOutput, Program, Result, Terminal
from verl_pivot.sandbox.host_functions import HostFunction
from verl_pivot.sandbox.local_service import LocalService, acquire, release
from verl_pivot.sandbox.nodes import TOKEN_VARIABLE, URLS_VARIABLE, Node
from verl_pivot.sandbox.output_stream import OutputStream
from verl_pivot.sandbox.pool_client import PoolClient
from verl_pivot.sandbox.pool_settings import PoolSettings, pool_of_environment
from verl_pivot.sandbox.sender import Sender
from verl_pivot.sandbox.session import Session, open_session
from verl_pivot.sandbox.session_sender import SessionSender
from verl_pivot.sandbox.streamed_program import StreamedProgram
from verl_pivot.sandbox.transport import Transport
from verl_pivot.sandbox.wire import encode


@dataclass(frozen=True, slots=True, kw_only=True)
class _Connection:
    """Parts of a client that exist between its first call and `close`."""

    nodes: list[Node]
    """Nodes in use; the other parts share this list, and the follower changes it."""
    transport: Transport
    sender: Sender
    session_sender: SessionSender
    follower: NodeFollower | None
    local: LocalService | None
    loop: asyncio.AbstractEventLoop


class Sandbox:
    """Runs programs in isolation. Make one per event loop; all tasks of the loop can share it.

    It uses the nodes of the first of these sources that exists:
    1. `urls` with `token` or VERL_PIVOT_SANDBOX_TOKEN; or `discovery`, which is asked every few seconds; or `pool`, a
       foreign pool, with the token if it has one;
    2. VERL_PIVOT_SANDBOX_URLS, separated by commas, with VERL_PIVOT_SANDBOX_TOKEN; or VERL_PIVOT_SANDBOX_POOL, the
       settings of a foreign pool as one line of YAML;
    3. in a process connected to Ray: the services that `verl-pivot sandbox start --ray` keeps on the cluster under the
       name in VERL_PIVOT_SANDBOX_NAME, or "default"; nodes that join or leave are followed;
    4. a service on this machine. The first call in this process starts it, with `serve_arguments` as arguments of
       `verl-pivot sandbox serve`; it ends when the last Sandbox of this process is closed.

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
        pool: PoolSettings | None = None,
        serve_arguments: Sequence[str] = (),
        rng: random.Random | None = None,
    ) -> None:
        if sum((bool(urls), discovery is not None, pool is not None)) > 1:
            raise ConfigError("several of urls=, discovery= and pool= are given; give one of them")
        is_given = urls is not None or discovery is not None
        listed = urls or () if is_given else os.environ.get(URLS_VARIABLE, "").split(",")
        self._urls = tuple(url.strip().rstrip("/") for url in listed if url.strip())
        self._token = token or os.environ.get(TOKEN_VARIABLE, "")
        self._pool_settings = pool or (None if is_given else pool_of_environment())
        self._pool: PoolClient | None = None
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
        environment: Mapping[str, str] | None = None,
        folder: str = "",
        limits: Limits = Limits(),  # noqa: B008  frozen
        network: Network = Network.NONE,
        compile_seconds: float | None = None,
        root: str = "",
        terminal: Terminal | None = None,
        deadline_seconds: float | None = None,
    ) -> Result:
        """Run one program; the Result says how it ended, whatever it did. Cancelling this call ends the program.

        Args:
            code: Source code.
            language: Name of a language that the node has: "python", or one of configs/languages.yaml.
            stdin: Input of the program.
            args: Arguments of the program.
            files: {relative name: content} of files that are written into the working directory before the start.
            fetch: Relative names of files to bring back after the end.
            environment: {name: value} of environment variables; they are added to the constant ones, or replace them.
            folder: Folder below /tmp in which the program starts, made if it is missing.
            limits: Limits of this program.
            network: Network that the program sees.
            compile_seconds: Seconds that the compiler gets; None takes the language's own limit.
            root: Name of the root file system that the program runs in, a folder of `verl-pivot sandbox serve --roots`;
                "" for none.
            terminal: Terminal that the program runs in; `stdin` is typed into it. None for pipes.
            deadline_seconds: Seconds for the whole call: queues, retries and the program itself. None for 120, or more
                for a limit over 10 s, so that a program that reaches its limit has a result.

        Raises:
            SandboxRequestError: If the request is not allowed.
            SandboxError: If no node came to a result until the deadline.
        """
        program = Program(
            code=code,
            language=language,
            stdin=stdin,
            args=tuple(args),
            files=files or {},
            fetch=tuple(fetch),
            environment=environment or {},
            folder=folder,
            limits=limits,
            network=network,
            compile_seconds=compile_seconds,
            root=root,
            terminal=terminal,
        )
        (result,) = await self.run_many([program], deadline_seconds=deadline_seconds)
        return result

    async def run_many(self, programs: Iterable[Program], *, deadline_seconds: float | None = None) -> list[Result]:
        """Run programs side by side; returns their Results in the programs' order.

        Raises as `run` does for the first program that has no result, and ends the others.
        """
        programs = list(programs)
        seconds = _longest_deadline(programs) if deadline_seconds is None else deadline_seconds
        deadline = time.monotonic() + seconds
        if self._pool_settings is not None:
            return await self._pool_client(self._pool_settings).run_many(programs, deadline)
        sender = (await self._connected(deadline)).sender
        futures: list[asyncio.Future[Result]] = []
        try:
            for program in programs:
                futures.append(await sender.submit(encode(program), deadline, seconds))
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # marks the exception as seen, so that asyncio does not report it

    def stream(self, program: Program, *, deadline_seconds: float | None = None) -> OutputStream:
        """Run one program and read its output while it runs; result and errors are those of `run`.

        Raises:
            SandboxRequestError: If this Sandbox uses a foreign pool.
        """
        if self._pool_settings is not None:
            protocol = self._pool_settings.protocol
            raise SandboxRequestError(
                f"a {protocol} pool sends no output before the end: use a service of `verl-pivot sandbox serve`"
            )
        seconds = _longest_deadline([program]) if deadline_seconds is None else deadline_seconds
        streamed = StreamedProgram(program, seconds)

        async def run(on_output: OnOutput) -> Result:
            connection = await self._connected(time.monotonic() + seconds)
            return await streamed.run(connection.session_sender, connection.nodes, on_output)

        return OutputStream(run, streamed.write)

    async def open(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        folder: str = "",
        limits: Limits = Limits(),  # noqa: B008  frozen
        network: Network = Network.NONE,
        root: str = "",
        terminal: Terminal | None = None,
        functions: Sequence[HostFunction] = (),
        snapshot: bytes | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Session:
        """Open a session: a Python interpreter that keeps its variables and files.

        Args:
            environment: {name: value} of environment variables; they are added to the constant ones, or replace them.
            folder: Folder below /tmp in which the interpreter starts, made if it is missing.
            limits: Limits of the whole session, but `wall_seconds` and `cpu_seconds` hold for each cell.
            network: Network that the session sees.
            root: Name of the root file system that the session runs in, as for `run`.
            terminal: Terminal that cells print to; a session with a terminal cannot be forked. None for pipes.
            functions: Functions of the host that cells may call if `Session.run` is given `answer_call`.
            snapshot: Content of a Snapshot that the session is restored from; None for an empty session.
            deadline_seconds: Seconds to open the session; each of the two cells that restore a snapshot gets as many.

        Raises:
            SandboxRequestError: If the request is not allowed.
            SnapshotError: If the snapshot cannot be restored.
            SandboxError: If no node opened the session until the deadline.
        """
        if self._pool_settings is not None:
            protocol = self._pool_settings.protocol
            raise SandboxRequestError(
                f"{protocol} pools do not support sessions: use a service of `verl-pivot sandbox serve`"
            )
        connection = await self._connected(time.monotonic() + deadline_seconds)
        session = await open_session(
            connection.session_sender,
            connection.nodes,
            environment=environment or {},
            folder=folder,
            limits=limits,
            network=network,
            root=root,
            terminal=terminal,
            functions=functions,
            deadline_seconds=deadline_seconds,
        )
        if snapshot is not None:
            try:
                await session.restore(snapshot, deadline_seconds=deadline_seconds)
            except BaseException:  # whatever it is, a cancelled call too: nobody would close the session
                await session.close()
                raise
        return session

    async def close(self) -> None:
        """Cancel all calls that are under way and close all connections; harmless to repeat."""
        self._is_closed = True
        connection, self._connection = self._connection, None
        if self._pool is not None:
            await self._pool.close()
        if connection is not None:
            if connection.follower is not None:
                await connection.follower.stop()
            await connection.sender.close()
            await connection.transport.close()
            if connection.local is not None:
                await asyncio.to_thread(release, connection.local)

    def _pool_client(self, settings: PoolSettings) -> PoolClient:
        if self._is_closed:
            raise SandboxRequestError("this Sandbox is closed; make another")
        self._pool = self._pool or PoolClient(settings, self._token, self._rng)
        return self._pool

    async def _connected(self, deadline: float) -> _Connection:
        if self._connection is not None:
            if self._connection.loop is not asyncio.get_running_loop():
                raise SandboxRequestError("this Sandbox is used from a second event loop; make one Sandbox for each")
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
            local = await _acquired(self._serve_arguments)
            nodes = [Node(local.url, local.token)]
        client = uuid4().hex
        transport = Transport(nodes, self._rng)
        return _Connection(
            nodes=nodes,
            transport=transport,
            sender=Sender(client, nodes, transport, self._rng),
            session_sender=SessionSender(client=client, transport=transport, rng=self._rng),
            follower=None if discovery is None else NodeFollower(discovery, nodes, transport),
            local=local,
            loop=asyncio.get_running_loop(),
        )


def _longest_deadline(programs: Sequence[Program]) -> float:
    """Deadline of a call with these programs, in seconds from now; one for the longest of their limits."""
    limits = [program.limits.wall_seconds + (program.compile_seconds or 0.0) for program in programs]
    return deadline_for(max(limits, default=0.0))


async def _acquired(arguments: Sequence[str]) -> LocalService:
    """The local service, which is given back as soon as it has started if this call is cancelled meanwhile."""
    starting = asyncio.get_running_loop().run_in_executor(None, acquire, arguments)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_give_back)
        raise


def _give_back(started: "asyncio.Future[LocalService]") -> None:
    if not started.cancelled() and started.exception() is None:
        # In a thread, since it blocks; not in the loop's executor, which may be shut down already.
        threading.Thread(target=release, args=(started.result(),), name="verl-pivot-release").start()


async def _ray_discovery() -> Discovery | None:
    """Discovery on the Ray cluster of this process; None without a cluster, or without a sandbox on the cluster."""
    if "ray" not in sys.modules:
        return None
    from verl_pivot.sandbox.ray_discovery import find_discovery

    return await asyncio.to_thread(find_discovery)
