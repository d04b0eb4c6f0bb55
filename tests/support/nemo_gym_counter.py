"""Server that answers over HTTP as NeMo Gym's example with a counter per session does; it may be told to fail."""

import json
from typing import Any
from uuid import uuid4

from aiohttp import web

TOOLS = [
    {
        "name": "increment_counter", "type": "function", "description": "", "strict": True,
        "parameters": {
            "type": "object", "properties": {"count": {"type": "integer", "description": ""}}, "required": ["count"],
            "additionalProperties": False,
        },
    },
    {
        "name": "get_counter_value", "type": "function", "description": "", "strict": True,
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    },
]  # fmt: skip
ROW = {
    "responses_create_params": {
        "input": [{"content": "add 1 then add 2 then get the count", "role": "user"}],
        "tools": TOOLS,
    },
    "expected_count": 6,
    "initial_count": 3,
}
"""The first example row of `resources_servers/example_session_state_mgmt`."""


SESSION = web.RequestKey("session", str)


class Counters:
    """One counter per session. `faults` says how paths fail; `asked` has the bodies of requests to `/verify`."""

    def __init__(self, **faults: Any) -> None:
        self.faults = faults
        self.counters: dict[str, int] = {}
        self.asked: list[Any] = []

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._session])
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_post("/seed_session", self._seed)
        app.router.add_post("/increment_counter", self._increment)
        app.router.add_post("/get_counter_value", self._value)
        app.router.add_post("/verify", self._verify)
        return app

    @web.middleware
    async def _session(self, request: web.Request, handler: Any) -> web.StreamResponse:
        fault = self.faults.get(request.path.strip("/").replace(".json", ""))
        if isinstance(fault, int):
            return web.Response(status=fault, text="Internal Server Error")
        if fault == "abort":
            assert request.transport is not None
            request.transport.abort()
        if isinstance(fault, dict | list):
            return web.json_response(fault)
        if fault == "huge":
            return web.Response(text="x" * 2**21)
        request[SESSION] = request.cookies.get("counter", str(uuid4()))
        response: web.StreamResponse = await handler(request)
        response.set_cookie("counter", request[SESSION])
        return response

    async def _openapi(self, request: web.Request) -> web.Response:
        return web.json_response({"paths": {"/seed_session": {}, "/verify": {}, "/increment_counter": {}}})

    async def _seed(self, request: web.Request) -> web.Response:
        initial = (await request.json())["initial_count"]
        if not isinstance(initial, int):
            return web.json_response({"detail": [{"loc": ["body", "initial_count"]}]}, status=422)
        self.counters.setdefault(request[SESSION], initial)
        return web.json_response({})

    async def _increment(self, request: web.Request) -> web.Response:
        count = (await request.json())["count"]
        if count > 100:
            detail = [{"loc": ["body", "count"], "msg": "Input should be less than or equal to 100"}]
            return web.json_response({"detail": detail}, status=422)
        self.counters[request[SESSION]] += count
        return web.json_response({"success": True})

    async def _value(self, request: web.Request) -> web.Response:
        return web.json_response({"count": self.counters[request[SESSION]]})

    async def _verify(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text())
        self.asked.append(body)
        reward = float(body["expected_count"] == self.counters[request[SESSION]])
        return web.json_response({**body, "reward": reward})
