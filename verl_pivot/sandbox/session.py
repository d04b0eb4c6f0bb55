"""Cells -> Results of one Python interpreter that keeps its variables and files, on one node."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from uuid import uuid4

import msgspec

from verl_pivot.errors import SandboxError, SandboxFileError, SandboxRequestError, SessionLostError, SnapshotError
from verl_pivot.sandbox.call_answering import CallAnswering, HostFailureError
from verl_pivot.sandbox.cell_socket import CellSocket
from verl_pivot.sandbox.deadlines import DEADLINE_SECONDS, deadline_for
from verl_pivot.sandbox.execution import Limits, Network, OnOutput, Program, Result, SessionState, Status, Terminal
from verl_pivot.sandbox.failures import Failure, FailureKind
from verl_pivot.sandbox.host_functions import AnswerCall, CallLimits, HostFunction, check_functions
from verl_pivot.sandbox.nodes import Node
from verl_pivot.sandbox.output_stream import OutputStream
from verl_pivot.sandbox.session_sender import Exchange, SessionSender
from verl_pivot.sandbox.snapshot import (
    Snapshot,
    decode_lost,
    decode_snapshot,
    removing_cell,
    restoring_cell,
    saving_cell,
)
from verl_pivot.sandbox.transport import TransportError
from verl_pivot.sandbox.wire import MAX_CALL_MESSAGE_BYTES, CellBody, ForkBody, Line, OpenBody, encode

_MAX_ERROR_LENGTH = 1000
_RETRIED = frozenset({FailureKind.OVERLOADED})
"""Failures after which a cell or a fork is sent again: it was never started."""
_RETRIED_AT_OPEN = _RETRIED | {FailureKind.SHUTTING_DOWN, FailureKind.SANDBOX_ERROR}
"""Failures after which another node is asked to open the session."""
_LOST = frozenset({FailureKind.SESSION_NOT_FOUND, FailureKind.SHUTTING_DOWN, FailureKind.CANCELLED})
"""Failures which mean that an open session is lost."""


async def open_session(
    sender: SessionSender,
    nodes: Sequence[Node],
    *,
    environment: Mapping[str, str],
    folder: str,
    limits: Limits,
    network: Network,
    root: str,
    terminal: Terminal | None,
    functions: Sequence[HostFunction],
    deadline_seconds: float,
) -> "Session":
    """Open a session on the first of `nodes` that takes it.

    Raises:
        SandboxRequestError: If the request is not allowed.
        SandboxError: If no node opened the session until the deadline.
    """
    check_functions(functions)
    body = OpenBody(
        client=sender.client,
        id=uuid4().hex,
        deadline_seconds=deadline_seconds,
        limits=msgspec.Raw(encode(limits)),
        network=network,
        root=root,
        environment=dict(environment),
        folder=folder,
        terminal=msgspec.Raw(encode(terminal)),
        functions=msgspec.Raw(encode(list(functions))),
    )
    try:
        node, line = await sender.send(nodes, "/v1/sessions", body, _RETRIED_AT_OPEN)
    except TransportError as error:
        raise SandboxError(f"no session could be opened: {error}") from error
    return Session(sender, node, _state(line), limits, [function.name for function in functions])


class Session:
    """A Python interpreter in a sandbox; `Sandbox.open` and `Session.fork` make one, `close` ends it.

    Cells, reads and writes of files run one at a time: a second request is refused until the first has its answer.

    Example:
        async with await sandbox.open() as session:
            await session.write_file("input.txt", b"20")
            await session.run("x = int(open('input.txt').read())\\nopen('output.txt', 'w').write(str(x + 1))")
            assert (await session.run("x + 1")).value == "21"
            assert await session.read_file("output.txt") == b"21"
    """

    def __init__(
        self, sender: SessionSender, node: Node, state: SessionState, limits: Limits, functions: Sequence[str]
    ) -> None:
        self.id = state.id
        self.epoch = state.epoch
        """Number of the interpreter; it grows when a fresh one replaced it, and all variables and files are gone."""
        self._sender = sender
        self._node = node
        self._limits = limits
        self._functions = functions
        """Names of the functions of the host that cells may call."""
        self._socket = CellSocket(sender.transport, node, state.id)
        self.lost: tuple[str, ...] = ()
        """Parts of the snapshot that could not be restored, each as "name: reason"."""
        self._notice = ""
        """Text about `lost` with which the next cell's stderr begins, so that a policy reads it."""
        self._is_closed = False
        self._abandoned_id: str | None = None
        """Id of a request whose caller stopped waiting; the node may not know that yet."""
        node.num_sessions += 1

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        code: str,
        *,
        wall_seconds: float | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        answer_call: AnswerCall | None = None,
        call_limits: CallLimits = CallLimits(),  # noqa: B008  frozen
        deadline_seconds: float | None = None,
    ) -> Result:
        """Run one cell; the repr of its last expression comes back as `value`.

        Args:
            code: Python.
            wall_seconds: Limit of this cell; None takes the session's.
            files: {name: content} written into the working directory before the cell runs.
            fetch: Names of files to bring back after the cell.
            answer_call: Answers the cell's calls of the functions that the session was opened with; None refuses them.
                An exception that it raises ends the cell and its interpreter, and is raised here.
            call_limits: Limits of these calls.
            deadline_seconds: Seconds for the whole call, without those in which `answer_call` works; None for 120, or
                more for a limit over 10 s, so that a cell that reaches its limit has a result.

        Raises:
            SandboxRequestError: If the cell is not allowed, or the session is busy with another one.
            SessionLostError: If the interpreter is gone through no fault of this cell.
            SandboxError: If there is no result until the deadline, or a call has no reply in time.
        """
        cell = self._cell(code, wall_seconds, files, fetch, deadline_seconds)
        if answer_call is None:
            return self._take(await self._send("run", cell, self._socket))
        try:
            return self._take(await self._send_with_calls(cell, answer_call, call_limits))
        except HostFailureError as failure:
            raise failure.error from None

    async def _send_with_calls(self, cell: CellBody, answer_call: AnswerCall, limits: CallLimits) -> Line:
        if not self._socket.is_free:
            raise SandboxRequestError(f"session {self.id} is running another cell; await that cell first")
        cell = msgspec.structs.replace(cell, calls=msgspec.Raw(encode(limits)))
        num_bytes = len(encode(cell))
        if num_bytes > MAX_CALL_MESSAGE_BYTES:
            raise SandboxRequestError(
                f"a cell with calls has {num_bytes} bytes, more than {MAX_CALL_MESSAGE_BYTES}: pass data by write_file"
            )
        limit = asyncio.timeout(cell.deadline_seconds)
        answering = CallAnswering(answer_call, limits, self._functions, limit)

        async def exchange(node: Node, path: str, data: bytes) -> Line:
            return await self._socket.send(data, answering)

        return await self._send("run", cell, exchange=exchange, limit=limit)

    def stream(
        self,
        code: str,
        *,
        wall_seconds: float | None = None,
        files: Mapping[str, bytes] | None = None,
        fetch: Sequence[str] = (),
        deadline_seconds: float | None = None,
    ) -> OutputStream:
        """Run one cell and read its output while it runs; arguments, result and errors are those of `run`.

        The cell cannot call functions of the host. Leaving the stream before the cell has ended also ends the
        interpreter, as cancelling `run` does.
        """
        body = self._cell(code, wall_seconds, files, fetch, deadline_seconds)

        async def run(on_output: OnOutput) -> Result:
            async def exchange(node: Node, path: str, data: bytes) -> Line:
                return await self._sender.transport.stream(node, path, data, on_output)

            return self._take(await self._send("stream", body, exchange=exchange))

        async def write(text: str) -> bool:
            raise SandboxRequestError("the cells of a session have no input: run a program with a terminal instead")

        return OutputStream(run, write)

    def _cell(
        self,
        code: str,
        wall_seconds: float | None,
        files: Mapping[str, bytes] | None,
        fetch: Sequence[str],
        deadline_seconds: float | None,
    ) -> CellBody:
        limits = Limits(wall_seconds=self._limits.wall_seconds if wall_seconds is None else wall_seconds)
        cell = Program(code=code, files=files or {}, fetch=tuple(fetch), limits=limits)  # checks names and sizes
        return CellBody(
            client=self._sender.client,
            id=uuid4().hex,
            deadline_seconds=deadline_for(limits.wall_seconds) if deadline_seconds is None else deadline_seconds,
            epoch=self.epoch,
            code=code,
            wall_seconds=limits.wall_seconds,
            files=dict(cell.files),
            fetch=cell.fetch,
        )

    def _take(self, line: Line) -> Result:
        """The result of a cell; remembers the epoch after it."""
        result = line.result
        if result is None or result.session is None:
            raise SessionLostError(f"{self._node.url} answered for session {self.id} without the session's state")
        self.epoch = result.session.epoch
        notice, self._notice = self._notice, ""
        return replace(result, stderr=notice + result.stderr) if notice else result

    async def read_file(self, path: str, *, deadline_seconds: float | None = None) -> bytes:
        """Content of a regular file in the session's working directory. Raises as `run` does.

        Args:
            path: Path relative to /tmp, whatever the current directory of the interpreter is.
            deadline_seconds: Seconds for the whole call; None as for `run`.

        Raises:
            SandboxFileError: If there is no such file, or it is a link, a folder or too large.
        """
        result = await self._run_empty_cell(f"{path!r} could be read", {}, (path,), deadline_seconds)
        if path not in result.files:
            reason = result.file_errors.get(path, "the service did not return it")
            raise SandboxFileError(f"file {path!r} of session {self.id} cannot be read: {reason}")
        return result.files[path]

    async def write_file(self, path: str, content: bytes, *, deadline_seconds: float | None = None) -> None:
        """Write or replace a file in the session's working directory, and make its folders. Raises as `run` does.

        Args:
            path: Path relative to /tmp, whatever the current directory of the interpreter is.
            content: At most MAX_FILE_BYTES; a file that does not fit into /tmp raises SandboxRequestError.
            deadline_seconds: Seconds for the whole call; None as for `run`.
        """
        await self._run_empty_cell(f"{path!r} was written", {path: content}, (), deadline_seconds)

    async def fork(self, *, deadline_seconds: float = DEADLINE_SECONDS) -> "Session":
        """Open a branch: a session with copies of all variables, and the same working directory. Raises as `run`."""
        body = ForkBody(client=self._sender.client, id=uuid4().hex, deadline_seconds=deadline_seconds, epoch=self.epoch)
        state = _state(await self._send("fork", body))
        return Session(self._sender, self._node, state, self._limits, self._functions)

    async def snapshot(self, *, wall_seconds: float | None = None, deadline_seconds: float | None = None) -> Snapshot:
        """State of the session as bytes, from which `Sandbox.open` makes another one, on any service. Raises as `run`.

        It holds variables, functions, classes and imports of cells, and the files and links below /tmp. Those that
        cannot be pickled or do not fit are left out; small ones are kept first. Only sessions unpickle a snapshot.

        Args:
            wall_seconds: Wall limit of the cell that writes the snapshot; None takes the session's.
            deadline_seconds: Seconds for each of the two requests; None as for `run`.

        Raises:
            SnapshotError: If the session's cells or limits kept the snapshot from being written.
        """
        name = f"snapshot-{uuid4().hex}"
        return decode_snapshot(await self._run_helper(saving_cell(name), name, {}, wall_seconds, deadline_seconds))

    async def restore(self, snapshot: bytes, *, deadline_seconds: float | None = None) -> None:
        """Restore the state of a snapshot in a session in which no cell ran; sets `lost`. Raises as `run` does.

        Raises:
            SnapshotError: If the bytes are no snapshot, or cannot be restored, for example within the session's limits.
        """
        decode_snapshot(snapshot)
        name = f"snapshot-{uuid4().hex}"
        lost = await self._run_helper(restoring_cell(name), name, {name: snapshot}, None, deadline_seconds)
        self.lost = decode_lost(lost)
        if self.lost:
            self._notice = "\n".join(("These were lost when the session was restored:", *self.lost, ""))

    async def close(self) -> None:
        """End the interpreter; harmless to repeat."""
        if not self._is_closed:
            self._is_closed = True
            self._node.num_sessions -= 1
            await self._socket.close()
            await self._sender.transport.delete(self._node, f"/v1/sessions/{self.id}?client={self._sender.client}")

    async def _run_empty_cell(
        self, purpose: str, files: Mapping[str, bytes], fetch: Sequence[str], deadline_seconds: float | None
    ) -> Result:
        """Move files with an empty cell, so that they are moved in order with the session's other cells."""
        epoch = self.epoch
        result = await self.run("", files=files, fetch=fetch, deadline_seconds=deadline_seconds)
        if self.epoch != epoch:  # something that an earlier cell left running ended the interpreter
            reason = result.error or result.status
            raise SessionLostError(f"session {self.id} lost its interpreter and files before {purpose}: {reason}")
        return result

    async def _run_helper(
        self,
        code: str,
        name: str,
        files: Mapping[str, bytes],
        wall_seconds: float | None,
        deadline_seconds: float | None,
    ) -> bytes:
        """Run a cell that this package wrote; returns the file that the cell leaves."""
        result = await self.run(
            code, files=files, fetch=(name,), wall_seconds=wall_seconds, deadline_seconds=deadline_seconds
        )
        if result.status is not Status.OK or name not in result.files:
            reasons = (result.stderr, result.error or "", result.file_errors.get(name, ""))
            last_words = [reason.strip().splitlines()[-1] for reason in reasons if reason.strip()]
            raise SnapshotError(f"session {self.id}: {'; '.join((result.status, *last_words))}"[:_MAX_ERROR_LENGTH])
        await self.run(removing_cell(name), deadline_seconds=deadline_seconds)
        return result.files[name]

    async def _send(
        self,
        verb: str,
        body: CellBody | ForkBody,
        socket: CellSocket | None = None,
        exchange: Exchange | None = None,
        limit: asyncio.Timeout | None = None,
    ) -> Line:
        if self._is_closed:
            raise SandboxRequestError(f"session {self.id} is closed; open another")
        if self._abandoned_id is not None:
            await self._sender.transport.post_cancel(self._node, self._sender.client, [self._abandoned_id])
            self._abandoned_id = None
        try:
            path = f"/v1/sessions/{self.id}/{verb}"
            _, line = await self._sender.send([self._node], path, body, _RETRIED, socket, exchange, limit)
        except TransportError as error:
            raise SessionLostError(f"session {self.id} is lost with its node {self._node.url}: {error}") from error
        except (asyncio.CancelledError, SandboxError, HostFailureError):
            self._abandoned_id = body.id
            raise
        if line.failure is not None:
            raise self._error(line.failure)
        return line

    def _error(self, failure: Failure) -> Exception:
        if failure.kind in _LOST:
            return SessionLostError(f"session {self.id} is lost: {failure.kind}: {failure.message}")
        return failure.as_error()


def _state(line: Line) -> SessionState:
    """State of the session that a node opened.

    Raises:
        SandboxRequestError: If the answer is a refusal of the request.
        SandboxError: If the answer is any other failure.
    """
    if line.failure is not None:
        raise line.failure.as_error()
    if line.session is None:
        raise SandboxError("the service answered without the session's state; are client and service the same version?")
    return line.session
