"""Common parts of the pages of `verl-pivot inspect`: checks of requests, static files, and answers made in a thread.

Every request must name a host that this server has, so that the name of another site cannot lead here (DNS rebinding).
Every request for data must carry the token of the page's address.
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from verl_pivot.errors import PivotError
from verl_pivot.tools.http_service import UnanswerableRequestError, make_app
from verl_pivot.types import JsonObject

AnswerT = TypeVar("AnswerT")
STATIC = Path(__file__).parent / "static"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TOKEN_HEADER = "X-Inspect-Token"


class GuardedPage:
    """A page that gives its data only to requests with its token."""

    def __init__(self, *, token: str, host: str) -> None:
        """Create the page.

        Args:
            token: Token that requests for data must carry.
            host: Address that the server listens on.
        """
        self._token, self._host = token, host
        self._is_loopback = _is_loopback(host)

    def guarded_app(self, view: str) -> web.Application:
        """An application that has the files of `static`; `view` names the script that draws the page's views."""
        app = make_app()
        app.middlewares.append(self._guard)
        app.on_response_prepare.append(_add_headers)
        app.router.add_get("/", _file("index.html"))
        app.router.add_get("/view.js", _file(view))
        for file in STATIC.iterdir():
            app.router.add_get(f"/{file.name}", _file(file.name))
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not self._is_own_host(request.url.host):
            raise UnanswerableRequestError(
                f"this server does not answer for {request.host}: open the address that verl-pivot inspect printed", 403
            )
        if request.path.startswith("/api/"):
            given = request.headers.get(_TOKEN_HEADER) or request.query.get("token", "")
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                raise UnanswerableRequestError(
                    "the address has no valid token: open the address that verl-pivot inspect printed", 403
                )
        return await handler(request)

    def _is_own_host(self, name: str | None) -> bool:
        """Whether no foreign name server can have led this name here: it is localhost, an IP address, or --host."""
        if name in ("localhost", self._host):
            return True
        try:
            named = ip_address(name or "")
        except ValueError:
            return False
        return named.is_loopback or not self._is_loopback


def in_thread(answer: Callable[[JsonObject], object]) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A handler that answers in a thread, since a query may take a second."""

    async def handler(request: web.Request) -> web.Response:
        query: JsonObject = {key: value for key, value in request.query.items() if key != "token"}
        body = await answered(lambda: json.dumps(answer(query), default=msgspec.to_builtins, allow_nan=False))
        return web.Response(text=body, content_type="application/json")

    return handler


async def answered(answer: Callable[[], AnswerT]) -> AnswerT:
    """Result of a function that runs in a thread; a PivotError becomes an answer with its message."""
    try:
        return await asyncio.to_thread(answer)
    except PivotError as error:
        raise UnanswerableRequestError(str(error)) from error


def converted(values: Any, form: Any) -> Any:
    """The values of a query as an object of the type `form`.

    Raises:
        UnanswerableRequestError: If the values do not fit the type.
    """
    try:
        return msgspec.convert(values, form, strict=False)
    except msgspec.ValidationError as error:
        raise UnanswerableRequestError(f"a parameter of the address is unknown, missing or invalid: {error}") from error


def _file(name: str) -> Callable[[web.Request], Awaitable[web.FileResponse]]:
    async def handler(request: web.Request) -> web.FileResponse:
        return web.FileResponse(STATIC / name)

    return handler


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
