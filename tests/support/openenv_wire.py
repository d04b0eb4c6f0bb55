"""Server with recorded answers of `openenv_counter.py` under openenv-core 0.3.0; it may be told to fail."""

import json
from typing import Any

from aiohttp import web

SCHEMA = {
    "action": {
        "additionalProperties": False,
        "description": "Adds to the count.",
        "properties": {
            "metadata": {
                "additionalProperties": True,
                "description": "Additional metadata for the action",
                "title": "Metadata",
                "type": "object",
            },
            "by": {"description": "How much.", "maximum": 2, "minimum": 0, "title": "By", "type": "integer"},
        },
        "required": ["by"],
        "title": "Count",
        "type": "object",
    },
    "observation": {},
    "state": {},
}
FULL = {
    "message": "Server at capacity: 2/2 sessions active. Cannot accept new connections.",
    "code": "CAPACITY_REACHED",
    "active_sessions": 2,
    "max_sessions": 2,
}
REFUSED = {
    "message": "Invalid message",
    "code": "VALIDATION_ERROR",
    "errors": [
        {"type": "less_than_equal", "loc": ["by"], "msg": "Input should be less than or equal to 2", "input": 9}
    ],
}


class Recorded:
    """A server with recorded answers. `fault` says how it fails in a step; `resets` has the data of its resets."""

    def __init__(self, fault: str = "", schema: Any = SCHEMA) -> None:
        self.fault, self.schema = fault, schema
        self.num_sessions = 0
        self.resets: list[Any] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/schema", self._schema)
        app.router.add_get("/ws", self._session)
        return app

    async def _schema(self, request: web.Request) -> web.StreamResponse:
        if isinstance(self.schema, int):
            return web.Response(status=self.schema, text="Internal Server Error")
        return web.json_response(self.schema)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        if self.fault == "no_handshake":
            return web.Response(status=500)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.num_sessions == 2:
            await socket.send_json({"type": "error", "data": FULL})
            await socket.close()
            return socket
        self.num_sessions += 1
        try:
            await self._play(socket, request)
        finally:
            self.num_sessions -= 1
        return socket

    async def _play(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        count = 0
        async for message in socket:
            asked = json.loads(message.data)
            if asked["type"] == "reset" and self.fault == "silent_reset":
                continue
            if asked["type"] == "reset":
                self.resets.append(asked["data"])
                count = asked["data"].get("start", 0)
                await _observe(socket, count, None)
            elif self.fault:
                await self._fail(socket, request)
            elif asked["data"]["by"] == 0:
                await socket.send_json({"type": "error", "data": {"message": "'zero'", "code": "EXECUTION_ERROR"}})
            else:
                count += asked["data"]["by"]
                await _observe(socket, count, float(asked["data"]["by"]))

    async def _fail(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        match self.fault:
            case "close":
                await socket.close()
            case "abort":
                assert request.transport is not None
                request.transport.abort()
            case "silent":
                pass
            case "binary":
                await socket.send_bytes(b"\x00")
            case "huge":
                await socket.send_str("x" * 2**21)
            case "refuse":
                await socket.send_json({"type": "error", "data": REFUSED})
            case _:
                await socket.send_str(self.fault)


async def _observe(socket: web.WebSocketResponse, count: int, reward: float | None) -> None:
    data = {"observation": {"count": count}, "reward": reward, "done": count >= 3}
    await socket.send_str(json.dumps({"type": "observation", "data": data}, separators=(",", ":")))
