"""Server that speaks the protocols of foreign sandbox pools; a program's code selects its scripted answers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class PoolServer:
    """A server that runs nothing, and records what it was asked."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    scripts: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    """{code: (HTTP status, answer) of each attempt}; further attempts get the last one."""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.authorizations.append(request.headers.get("Authorization"))
        code = body["code"] if "code" in body else body["submissions"][0]["solution"]
        script = self.scripts[code]
        status, answer = script.pop(0) if len(script) > 1 else script[0]
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return web.Response(text=text, status=status, content_type="application/json")


@asynccontextmanager
async def pool_server(**scripts: list[tuple[int, Any]]) -> AsyncIterator[PoolServer]:
    """A server of both protocols on 127.0.0.1, in this event loop."""
    server = PoolServer(scripts=scripts)
    app = web.Application()
    app.router.add_post("/run_code", server.answer)
    app.router.add_post("/run/long-batch", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
