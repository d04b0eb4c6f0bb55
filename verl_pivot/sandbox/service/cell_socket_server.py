"""WebSockets of sessions: each message is a cell, and each answer a line; a cell costs a third of a POST request.

Message and answer are those of POST /v1/sessions/{id}/run, which also takes cells larger than MAX_CELL_BYTES.
"""

from collections.abc import Awaitable, Callable

from aiohttp import WSCloseCode, web

from verl_pivot.sandbox.wire import MAX_CELL_BYTES

IDLE_SECONDS = 75.0
"""Seconds without a cell after which a socket is closed. No pings: neither side reads while the other one works."""

ServeCell = Callable[[str, bytes], Awaitable[bytes]]
"""(id of the session, body of the cell) -> line of the answer."""


class CellSocketServer:
    """Every open WebSocket of one service."""

    def __init__(self, serve: ServeCell) -> None:
        self._serve = serve
        self._open: set[web.WebSocketResponse] = set()

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve cells until the client leaves; a cell that still runs then is stopped, as with any request."""
        socket = web.WebSocketResponse(max_msg_size=MAX_CELL_BYTES, compress=False, receive_timeout=IDLE_SECONDS)
        await socket.prepare(request)
        self._open.add(socket)
        try:
            async for message in socket:
                await socket.send_bytes(await self._serve(request.match_info["id"], message.data))
        except TimeoutError:
            await socket.close()
        finally:
            self._open.discard(socket)
        return socket

    async def close(self, app: web.Application) -> None:
        """Close every socket, at the end of the service."""
        for socket in tuple(self._open):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the service stops")
