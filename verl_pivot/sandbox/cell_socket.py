"""WebSocket from a session to its node, for cells: opened at the first cell, and reopened when it breaks."""

import time

import aiohttp

from verl_pivot.sandbox.call_answering import CallAnswering
from verl_pivot.sandbox.nodes import Node
from verl_pivot.sandbox.transport import KEEP_ALIVE_SECONDS, Transport, TransportError
from verl_pivot.sandbox.wire import Line, decode_line


class CellSocket:
    """A WebSocket that carries one request at a time."""

    def __init__(self, transport: Transport, node: Node, session_id: str) -> None:
        self._transport = transport
        self._node = node
        self._path = f"/v1/sessions/{session_id}/cells"
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._used_at = 0.0
        """Time of the last use, on the monotonic clock."""
        self.is_free = True
        """Whether no request waits for its answer."""

    async def send(self, body: bytes, answering: CallAnswering | None = None) -> Line:
        """Answer to one cell, however long it takes; cancelling this call makes the node stop the cell.

        Args:
            body: The cell.
            answering: Answers the cell's calls of functions of the host; None if the cell may make none.

        Raises:
            TransportError: If the connection breaks off.
            HostFailureError: If a call could not be answered, which makes the node stop the cell too.
        """
        is_answered = self.is_free = False
        try:
            if time.monotonic() - self._used_at > KEEP_ALIVE_SECONDS:
                await self.close()
            line = await self._exchange(body)
            while answering is not None and line.call is not None:
                line = await self._exchange(await answering.reply(line.call))
            is_answered = True
        finally:
            self.is_free, self._used_at = True, time.monotonic()
            if not is_answered:
                await self.close()
        return line

    async def _exchange(self, message: bytes) -> Line:
        """Send a message; returns the node's next line."""
        try:
            if self._socket is None:
                self._socket = await self._transport.open_socket(self._node, self._path)
            await self._socket.send_bytes(message)
            answer = await self._socket.receive()
            if answer.type is not aiohttp.WSMsgType.BINARY:
                raise TransportError(f"the connection was closed: {answer.extra or answer.type.name}")
            return decode_line(answer.data)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TransportError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
