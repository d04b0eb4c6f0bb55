"""WebSockets of sessions: each message is a cell, and each answer a line; this costs a third of a POST request.

Message and answer are those of POST /v1/sessions/{id}/run, which also takes cells larger than MAX_CELL_BYTES. Only
here can a cell call functions of the host: the service sends a line for each call, and the client sends a reply.
"""

from collections.abc import Awaitable, Callable

from aiohttp import WSCloseCode, WSMsgType, web

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.wire import MAX_CALL_MESSAGE_BYTES, MAX_CELL_BYTES

IDLE_SECONDS = 75.0
"""Seconds without a cell after which a socket is closed. No pings: neither side reads while the other one works."""

AskClient = Callable[[bytes, float], Awaitable[bytes]]
"""(line, seconds to wait) -> the client's next message; raises SandboxError if none comes."""
ServeCell = Callable[[str, bytes, AskClient], Awaitable[bytes]]
"""(id of the session, body of the cell, function that asks the client meanwhile) -> line of the answer."""


class CellSocketServer:
    """Every open WebSocket of one service."""

    def __init__(self, serve: ServeCell, has_functions: Callable[[str], bool]) -> None:
        """Begin without sockets.

        Args:
            serve: Serves one cell.
            has_functions: Whether the session of this id has functions of the host.
        """
        self._serve = serve
        self._has_functions = has_functions
        self._open: set[web.WebSocketResponse] = set()

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve cells until the client leaves; a cell that still runs then is stopped, as with any request."""
        session_id = request.match_info["id"]
        max_bytes = MAX_CALL_MESSAGE_BYTES if self._has_functions(session_id) else MAX_CELL_BYTES
        socket = web.WebSocketResponse(max_msg_size=max_bytes, compress=False, receive_timeout=IDLE_SECONDS)

        async def ask(line: bytes, seconds: float) -> bytes:
            try:
                await socket.send_bytes(line)
                message = await socket.receive(seconds)
            except (TimeoutError, ConnectionError) as error:
                raise SandboxError(f"the client gave no reply to a call: {type(error).__name__}") from error
            if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                raise SandboxError(f"the client gave no reply to a call: {message.type.name}")
            data: bytes | str = message.data
            return data if isinstance(data, bytes) else data.encode()

        await socket.prepare(request)
        self._open.add(socket)
        try:
            async for message in socket:
                await socket.send_bytes(await self._serve(session_id, message.data, ask))
        except TimeoutError:
            await socket.close()
        finally:
            self._open.discard(socket)
        return socket

    async def close(self, app: web.Application) -> None:
        """Close every socket, at the end of the service."""
        for socket in tuple(self._open):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the service stops")
