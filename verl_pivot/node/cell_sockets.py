"""WebSockets of sessions: each message a cell, each answer its line; a third of the cost of a POST for each.

The body is that of POST /v1/sessions/{id}/run, and so is the answer. What is larger than MAX_CELL_BYTES goes there.
"""

from collections.abc import Awaitable, Callable

from aiohttp import WSCloseCode, web

from verl_pivot.sandbox.wire import MAX_CELL_BYTES

PING_SECONDS = 30.0
"""A client that answers none of these is gone."""

Serve = Callable[[str, bytes], Awaitable[bytes]]


class CellSockets:
    """The open ones of one service."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        """(session's id, body) -> line."""
        self._open: set[web.WebSocketResponse] = set()

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve cells until the client goes; whatever it waits for then is stopped, as with any request."""
        socket = web.WebSocketResponse(max_msg_size=MAX_CELL_BYTES, compress=False, heartbeat=PING_SECONDS)
        await socket.prepare(request)
        self._open.add(socket)
        try:
            async for message in socket:
                await socket.send_bytes(await self._serve(request.match_info["id"], message.data))
        finally:
            self._open.discard(socket)
        return socket

    async def close(self, app: web.Application) -> None:
        """When the service stops."""
        for socket in tuple(self._open):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the service stops")
