"""Requests about sessions -> Executions, and the open sessions: their clients and the time of their last use."""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from verl_pivot.errors import SandboxRequestError, SessionLostError
from verl_pivot.sandbox.execution import Limits, OnOutput, Program, Result, SessionState, check_place, check_root_name
from verl_pivot.sandbox.failures import Failure, FailureKind, ServiceBound
from verl_pivot.sandbox.host_functions import HostCall, PassedCalls, ReplyText
from verl_pivot.sandbox.service.backend import Backend
from verl_pivot.sandbox.service.cell_socket_server import AskClient
from verl_pivot.sandbox.service.executions import Execution, ExecutionTable, Start
from verl_pivot.sandbox.service.metrics import Metrics
from verl_pivot.sandbox.wire import (
    CellBody,
    ForkBody,
    OpenBody,
    ReplyBody,
    check_envelope,
    decode,
    decode_call_limits,
    decode_functions,
    decode_limits,
    decode_terminal,
    encode_call,
)

FIRST_EPOCH = 1
"""Epoch of a new session and of a new branch; the backend counts from there."""
_LATE_SECONDS = 5.0
"""Seconds beyond `reply_seconds` for which the service waits for a reply, so that the client gives up first."""
MAX_REMEMBERED = 10_000
"""Most sessions that are remembered after they were closed as idle, so that their users learn why they are gone."""


@dataclass(slots=True, kw_only=True)
class OpenSession:
    """One open session."""

    client: str
    used: float
    """Time of the latest use, on the monotonic clock."""
    has_functions: bool
    """Whether its cells may call functions of the host."""
    request: str = ""
    """Id of the latest request for a cell or a fork."""
    cell: str = ""
    """Id of the latest request whose cell was started."""


class SessionTable:
    """Every open session of one service."""

    def __init__(
        self,
        backend: Backend,
        executions: ExecutionTable,
        metrics: Metrics,
        *,
        max_sessions: int,
        idle_seconds: float,
    ) -> None:
        self._metrics = metrics
        self._backend = backend
        self._executions = executions
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._entries: dict[str, OpenSession] = {}
        self._num_opening = 0
        """Sessions that are being opened, or forked from others."""
        self._expired: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, body: OpenBody) -> Execution | Failure:
        """Execution that opens a session; a Failure if too many sessions are open.

        Raises:
            SandboxRequestError: If a limit is not allowed.
        """
        check_envelope(body.client, body.id, body.deadline_seconds)
        limits = decode_limits(body.limits)
        terminal = decode_terminal(body.terminal)
        check_root_name(body.root)
        check_place(body.environment, body.folder)
        functions = decode_functions(body.functions)
        if self._is_full and body.id not in self._entries:
            return self._full()

        async def opened() -> SessionState:
            is_prewarmed = await self._backend.open_session(
                body.id,
                limits=limits,
                network=body.network,
                root=body.root,
                environment=body.environment,
                folder=body.folder,
                terminal=terminal,
                functions=functions,
            )
            self._metrics.opened(is_prewarmed=is_prewarmed)
            return self._add(body.id, body.client, has_functions=bool(functions))

        place = (body.root, tuple(body.environment.items()), body.folder)
        fingerprint = hash(("open", limits, body.network, place, terminal, bytes(body.functions)))
        return _execution(body, fingerprint, num_bytes=len(body.id), start=lambda: self._opened(body.id, opened))

    def run_cell(
        self,
        session_id: str,
        body: CellBody,
        on_output: OnOutput | None = None,
        ask: AskClient | None = None,
    ) -> Execution | Failure:
        """Execution of a cell; a Failure if the session is not open or runs another cell.

        Args:
            session_id: Id of the session.
            body: The cell.
            on_output: Receiver of its output while it runs; None if nobody reads it before the end.
            ask: Passes the cell's calls of functions of the host to the client; None if the client cannot be asked.

        Raises:
            SandboxRequestError: If the cell is not allowed.
        """
        check_envelope(body.client, body.id, body.deadline_seconds)
        calls = _cell_calls(body, ask)
        limits = Limits(wall_seconds=body.wall_seconds)
        cell = Program(code=body.code, files=body.files, fetch=body.fetch, limits=limits)  # checks the fields
        failure = self._occupy(session_id, body.client, body.id)
        if failure is not None:
            return failure

        async def start() -> Result:
            self._check_first(session_id, body.id)
            with self._used(session_id):
                return await self._backend.run_cell(
                    session_id,
                    cell.code,
                    epoch=body.epoch,
                    wall_seconds=limits.wall_seconds,
                    files=body.files,
                    fetch=body.fetch,
                    on_output=on_output,
                    calls=calls,
                )

        fingerprint = hash((session_id, body.epoch, body.code))
        return _execution(body, fingerprint, num_bytes=len(body.code), start=start)

    def fork(self, session_id: str, body: ForkBody) -> Execution | Failure:
        """Execution that opens a branch of a session; a Failure as for `open` and `run_cell`."""
        check_envelope(body.client, body.id, body.deadline_seconds)
        if self._is_full and body.id not in self._entries:
            return self._full()
        failure = self._occupy(session_id, body.client, body.id)
        if failure is not None:
            return failure

        async def opened() -> SessionState:
            with self._used(session_id):
                await self._backend.fork_session(session_id, body.id, epoch=body.epoch)
            return self._add(body.id, body.client, has_functions=self.has_functions(session_id))

        fingerprint = hash(("fork", session_id, body.epoch))
        return _execution(body, fingerprint, num_bytes=len(body.id), start=lambda: self._opened(body.id, opened))

    def has_functions(self, session_id: str) -> bool:
        """Whether the cells of a session may call functions of the host."""
        entry = self._entries.get(session_id)
        return entry is not None and entry.has_functions

    async def close(self, session_id: str, client: str) -> Failure | None:
        """End a session, whatever it runs; returns a Failure if there is no such session."""
        entry = self._entries.get(session_id)
        if entry is None or entry.client != client:
            return self._missing(session_id)
        del self._entries[session_id]
        self._executions.cancel(client, [entry.request])
        await self._backend.close_session(session_id)
        return None

    async def close_idle(self) -> None:
        """End the sessions that were idle for too long; later requests for them fail with SESSION_LOST."""
        oldest = time.monotonic() - self._idle_seconds
        idle = [name for name, entry in self._entries.items() if entry.used < oldest and not self._is_busy(entry)]
        for session_id in idle:
            del self._entries[session_id]
            self._expired[session_id] = None
            await self._backend.close_session(session_id)
        while len(self._expired) > MAX_REMEMBERED:
            self._expired.popitem(last=False)

    @property
    def _is_full(self) -> bool:
        return len(self) + self._num_opening >= self._max_sessions

    async def _opened(self, session_id: str, opened: Callable[[], Awaitable[SessionState]]) -> SessionState | Failure:
        """Open a session, unless others that were accepted at the same time have taken the last place."""
        self._check_new(session_id)
        if self._is_full:
            return self._full()
        self._num_opening += 1
        try:
            return await opened()
        finally:
            self._num_opening -= 1

    @contextmanager
    def _used(self, session_id: str) -> Iterator[None]:
        """Count a session as used until the end of what it does, however long that takes."""
        try:
            yield
        finally:
            entry = self._entries.get(session_id)
            if entry is not None:
                entry.used = time.monotonic()

    def _occupy(self, session_id: str, client: str, request_id: str) -> Failure | None:
        """Reserve a session for a request; a Failure if it is not free. A repeated request joins the first one."""
        entry = self._entries.get(session_id)
        if entry is None or entry.client != client:
            return self._missing(session_id)
        if entry.request != request_id and self._is_busy(entry):
            message = f"session {session_id} is running another cell; await that cell first, or fork before it"
            return Failure(kind=FailureKind.SESSION_BUSY, message=message)
        entry.request, entry.used = request_id, time.monotonic()
        return None

    def _is_busy(self, entry: OpenSession) -> bool:
        return self._executions.is_live(entry.client, entry.request)

    def _missing(self, session_id: str) -> Failure:
        if session_id in self._expired:
            message = (
                f"session {session_id} was closed after {self._idle_seconds:.0f} s without use; open a new one, or "
                "start the service with more --session-idle-seconds"
            )
            return Failure(kind=FailureKind.SESSION_LOST, message=message)
        message = f"no session {session_id!r} is open here; open one first"
        return Failure(kind=FailureKind.SESSION_NOT_FOUND, message=message)

    def _check_new(self, session_id: str) -> None:
        if session_id in self._entries:
            raise SandboxRequestError(f"session {session_id} is open already; give each session its own id")

    def _check_first(self, session_id: str, request_id: str) -> None:
        """Refuse to run a cell again if its answer is gone: its effects are in the interpreter already.

        Raises:
            SessionLostError: If this request's cell was started before.
        """
        entry = self._entries[session_id]
        if entry.cell == request_id:
            raise SessionLostError(f"a cell of session {session_id} was started before, and its answer is lost")
        entry.cell = request_id

    def _add(self, session_id: str, client: str, *, has_functions: bool) -> SessionState:
        self._entries[session_id] = OpenSession(client=client, used=time.monotonic(), has_functions=has_functions)
        return SessionState(id=session_id, epoch=FIRST_EPOCH, num_cells=0)

    def _full(self) -> Failure:
        num_open = len(self) + self._num_opening
        message = f"{num_open} sessions are open, of {self._max_sessions} at most; close some, or add nodes"
        bound = ServiceBound.MAX_SESSIONS
        return Failure(kind=FailureKind.OVERLOADED, message=message, retry_after_seconds=1.0, bound=bound)


def _cell_calls(body: CellBody, ask: AskClient | None) -> PassedCalls | None:
    """Limits of a cell's calls, and the function that passes them to the client; None if the cell may make none.

    Raises:
        SandboxRequestError: If the client cannot be asked.
    """
    limits = decode_call_limits(body.calls)
    if limits is None:
        return None
    if ask is None:
        raise SandboxRequestError("a cell that calls functions of the host needs the session's WebSocket")

    async def on_call(call: HostCall) -> ReplyText:
        line = encode_call(body.id, call)
        reply = decode(await ask(line, limits.reply_seconds + _LATE_SECONDS), ReplyBody, "the reply to a call")
        if reply.number != call.number or (reply.value is None) == (reply.error is None):
            raise SandboxRequestError(f"call {call.number} needs a reply with either a value or an error")
        return ReplyText(reply.value, reply.error)

    return PassedCalls(limits, on_call)


def _execution(body: OpenBody | CellBody | ForkBody, fingerprint: int, num_bytes: int, start: Start) -> Execution:
    return Execution(
        client=body.client,
        id=body.id,
        fingerprint=fingerprint,
        num_bytes=num_bytes,
        deadline=time.monotonic() + body.deadline_seconds,
        start=start,
    )
