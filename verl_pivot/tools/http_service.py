"""Parts that our HTTP services share: decoding requests, refusing them in one sentence, serving until cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from verl_pivot.errors import ConfigError

BodyT = TypeVar("BodyT")
_MAX_BODY_BYTES = 8 << 20


class UnanswerableRequestError(Exception):
    """A request that cannot be answered; the text says why, in one sentence."""

    def __init__(self, text: str, status: int = 422) -> None:
        super().__init__(text)
        self.status = status
        """HTTP status of the answer; 422 is FastAPI's."""


def make_app() -> web.Application:
    """A web application that answers an UnanswerableRequestError with its text, and accepts bodies of up to 8 MiB."""
    return web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_refusals])


async def decoded_body(request: web.Request, form: type[BodyT]) -> BodyT:
    """The body of a request.

    Raises:
        UnanswerableRequestError: If it is no JSON of that form, or too large.
    """
    try:
        return msgspec.json.decode(await request.read(), type=form)
    except web.HTTPRequestEntityTooLarge as error:
        most = f"{_MAX_BODY_BYTES >> 20} MiB"
        raise UnanswerableRequestError(f"the body of a request to {request.path} has more than {most}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnanswerableRequestError(f"the body is not a valid request to {request.path}: {error}") from error


def json_answer(value: Any) -> web.Response:
    """A response with a value as JSON."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


async def serve(app: web.Application, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Answer requests until the task is cancelled.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        on_ready: Called with the address when requests are answered.

    Raises:
        ConfigError: If it cannot listen there.
    """
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    shown = f"[{host}]" if ":" in host else host  # the colons of an IPv6 address are none before a port
    try:
        try:
            await web.TCPSite(runner, host, port, backlog=1024).start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {shown}:{port}: {error.strerror}; give another --host or --port"
            ) from error
        on_ready(f"http://{shown}:{runner.addresses[0][1]}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


@web.middleware
async def _refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turn an UnanswerableRequestError into a response with its text, in the form of FastAPI."""
    try:
        return await handler(request)
    except UnanswerableRequestError as error:
        problem = msgspec.json.encode({"detail": str(error)})
        return web.Response(status=error.status, body=problem, content_type="application/json")
