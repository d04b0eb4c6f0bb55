"""Requests for sessions -> Executions on the backend; knows which sessions are open, whose they are and when used."""

import time
from collections import OrderedDict
from dataclasses import dataclass

from verl_pivot.errors import SandboxRequestError, SessionLostError
from verl_pivot.node.backend import Backend
from verl_pivot.node.executions import Execution, Executions, Start
from verl_pivot.sandbox.execution import Limits, Program, Result, SessionState
from verl_pivot.sandbox.failures import Failure, FailureKind
from verl_pivot.sandbox.wire import CellBody, ForkBody, OpenBody, check_envelope, decode_limits

FIRST_EPOCH = 1
"""Of a session and of a branch; the backend counts on from there."""
MAX_REMEMBERED = 10_000
"""Sessions closed for being idle whose users are told so."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One open session."""

    client: str
    used: float
    """On the monotonic clock."""
    request: str = ""
    """Id of the latest cell or fork."""
    cell: str = ""
    """Id of the latest cell that was started."""


class SessionTable:
    """Every open session of one service."""

    def __init__(self, backend: Backend, executions: Executions, max_sessions: int, idle_seconds: float) -> None:
        self._backend = backend
        self._executions = executions
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._entries: dict[str, Entry] = {}
        self._expired: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, body: OpenBody) -> Execution | Failure:
        """Raises SandboxRequestError if a limit is not allowed."""
        check_envelope(body.client, body.id, body.deadline_seconds)
        limits = decode_limits(body.limits)
        if len(self) >= self._max_sessions and body.id not in self._entries:
            return self._full()

        async def start() -> SessionState:
            self._check_new(body.id)
            await self._backend.open_session(body.id, limits=limits, network=body.network)
            return self._add(body.id, body.client)

        fingerprint = hash(("open", limits, body.network))
        return _execution(body, fingerprint, num_bytes=len(body.id), start=start)

    def run_cell(self, session_id: str, body: CellBody) -> Execution | Failure:
        """Raises SandboxRequestError if the cell is not allowed."""
        check_envelope(body.client, body.id, body.deadline_seconds)
        limits = Limits(wall_seconds=body.wall_seconds)
        cell = Program(code=body.code, files=body.files, fetch=body.fetch, limits=limits)  # for its checks
        failure = self._occupy(session_id, body.client, body.id)
        if failure is not None:
            return failure

        async def start() -> Result:
            self._check_first(session_id, body.id)
            return await self._backend.run_cell(
                session_id,
                cell.code,
                epoch=body.epoch,
                wall_seconds=limits.wall_seconds,
                files=body.files,
                fetch=body.fetch,
            )

        fingerprint = hash((session_id, body.epoch, body.code))
        return _execution(body, fingerprint, num_bytes=len(body.code), start=start)

    def fork(self, session_id: str, body: ForkBody) -> Execution | Failure:
        check_envelope(body.client, body.id, body.deadline_seconds)
        if len(self) >= self._max_sessions and body.id not in self._entries:
            return self._full()
        failure = self._occupy(session_id, body.client, body.id)
        if failure is not None:
            return failure

        async def start() -> SessionState:
            self._check_new(body.id)
            await self._backend.fork_session(session_id, body.id, epoch=body.epoch)
            return self._add(body.id, body.client)

        return _execution(body, hash(("fork", session_id, body.epoch)), num_bytes=len(body.id), start=start)

    async def close(self, session_id: str, client: str) -> Failure | None:
        """End it, whatever it runs."""
        entry = self._entries.get(session_id)
        if entry is None or entry.client != client:
            return self._missing(session_id)
        del self._entries[session_id]
        self._executions.cancel(client, [entry.request])
        await self._backend.close_session(session_id)
        return None

    async def close_idle(self) -> None:
        """End the sessions that nobody used for too long; their users are told that they are lost."""
        oldest = time.monotonic() - self._idle_seconds
        idle = [name for name, entry in self._entries.items() if entry.used < oldest and not self._is_busy(entry)]
        for session_id in idle:
            del self._entries[session_id]
            self._expired[session_id] = None
            await self._backend.close_session(session_id)
        while len(self._expired) > MAX_REMEMBERED:
            self._expired.popitem(last=False)

    def _occupy(self, session_id: str, client: str, request_id: str) -> Failure | None:
        """Note what it does next; a Failure if it cannot. A repeated request is let through: it joins the first."""
        entry = self._entries.get(session_id)
        if entry is None or entry.client != client:
            return self._missing(session_id)
        if entry.request != request_id and self._is_busy(entry):
            message = f"session {session_id} runs another cell; await that one first, or fork before it"
            return Failure(kind=FailureKind.SESSION_BUSY, message=message)
        entry.request, entry.used = request_id, time.monotonic()
        return None

    def _is_busy(self, entry: Entry) -> bool:
        return self._executions.is_live(entry.client, entry.request)

    def _missing(self, session_id: str) -> Failure:
        if session_id in self._expired:
            message = f"session {session_id} was closed after {self._idle_seconds:.0f} s without use"
            return Failure(kind=FailureKind.SESSION_LOST, message=message)
        message = f"no session {session_id!r} is open here; open one first"
        return Failure(kind=FailureKind.SESSION_NOT_FOUND, message=message)

    def _check_new(self, session_id: str) -> None:
        if session_id in self._entries:
            raise SandboxRequestError(f"session {session_id} is open already; give each its own id")

    def _check_first(self, session_id: str, request_id: str) -> None:
        """A cell whose answer is gone cannot be repeated: its effects are in the interpreter."""
        entry = self._entries[session_id]
        if entry.cell == request_id:
            raise SessionLostError(f"a cell of session {session_id} was begun and its answer is gone")
        entry.cell = request_id

    def _add(self, session_id: str, client: str) -> SessionState:
        self._entries[session_id] = Entry(client=client, used=time.monotonic())
        return SessionState(id=session_id, epoch=FIRST_EPOCH, num_cells=0)

    def _full(self) -> Failure:
        message = f"{len(self)} sessions are open, at most {self._max_sessions} may; close some, or add nodes"
        return Failure(kind=FailureKind.OVERLOADED, message=message, retry_after_seconds=1.0)


def _execution(body: OpenBody | CellBody | ForkBody, fingerprint: int, num_bytes: int, start: Start) -> Execution:
    return Execution(
        client=body.client,
        id=body.id,
        fingerprint=fingerprint,
        num_bytes=num_bytes,
        deadline=time.monotonic() + body.deadline_seconds,
        start=start,
    )
