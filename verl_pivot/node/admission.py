"""An HTTP request -> its body, or why it is refused before it costs anything."""

import asyncio
import hmac

from aiohttp import web

from verl_pivot.node.request_queue import ByteBudget
from verl_pivot.sandbox.failures import Failure, FailureKind
from verl_pivot.sandbox.wire import MAX_BODY_BYTES


class RefusedError(Exception):
    """An HTTP request that is answered by a failure as a whole."""

    def __init__(self, status: int, kind: FailureKind, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.failure = Failure(kind=kind, message=message, retry_after_seconds=retry_after_seconds)


def check_token(request: web.Request, authorization: bytes) -> None:
    """Raise RefusedError unless the request carries the header; takes the same time for every wrong one."""
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(given, authorization):
        message = "the header 'Authorization: Bearer TOKEN' is missing or holds another token than the service's"
        raise RefusedError(401, FailureKind.INVALID_REQUEST, message)


async def read_body(request: web.Request, budget: ByteBudget, seconds: float) -> bytes:
    """The body, within bounds of size, time and memory.

    Raises:
        RefusedError: If one of them is exceeded.
    """
    length = request.content_length
    if length is None:
        raise RefusedError(411, FailureKind.INVALID_REQUEST, "the header Content-Length is missing")
    if length > MAX_BODY_BYTES:
        message = f"a body of {length} bytes is larger than {MAX_BODY_BYTES}; send fewer requests at once"
        raise RefusedError(413, FailureKind.TOO_LARGE, message)
    if not budget.reserve(length):
        message = f"{budget.used} bytes of at most {budget.limit} are held already"
        raise RefusedError(429, FailureKind.OVERLOADED, message, retry_after_seconds=1.0)
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError as error:
        message = f"the body did not arrive within {seconds:g} s"
        raise RefusedError(408, FailureKind.INVALID_REQUEST, message) from error
    finally:
        budget.release(length)
