"""WebSocket of one session to its node, for cells: opened at the first cell, opened again when it breaks."""

import time

import aiohttp

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

    async def send(self, body: bytes) -> Line:
        """Answer to one cell, however long it takes; cancelling this call makes the node stop the cell.

        Raises:
            TransportError: If the connection breaks off.
        """
        is_answered = self.is_free = False
        try:
            if time.monotonic() - self._used_at > KEEP_ALIVE_SECONDS:
                await self.close()
            if self._socket is None:
                self._socket = await self._transport.open_socket(self._node, self._path)
            await self._socket.send_bytes(body)
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise TransportError(f"the connection was closed: {message.extra or message.type.name}")
            line = decode_line(message.data)
            is_answered = True
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise TransportError(f"{type(error).__name__}: {error}") from error
        finally:
            self.is_free, self._used_at = True, time.monotonic()
            if not is_answered:
                await self.close()
        return line

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
