"""An HTTP request -> its body, or the reason why it is refused before it costs anything."""

import asyncio
import base64
import hmac

from aiohttp import web

from verl_pivot.sandbox.failures import Failure, FailureKind, ServiceBound
from verl_pivot.sandbox.service.request_queue import ByteBudget
from verl_pivot.sandbox.wire import MAX_BODY_BYTES


class AdmissionError(Exception):
    """An HTTP request is refused as a whole: its answer is one failure."""

    def __init__(
        self,
        status: int,
        kind: FailureKind,
        message: str,
        *,
        retry_after_seconds: float | None = None,
        bound: ServiceBound | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.failure = Failure(kind=kind, message=message, retry_after_seconds=retry_after_seconds, bound=bound)


def check_token(request: web.Request, authorization: bytes) -> None:
    """Check the Authorization header, in constant time, so that a token cannot be guessed part by part.

    Raises:
        AdmissionError: If it is missing or wrong.
    """
    given = _as_bearer(request.headers.get("Authorization", "")).encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(given, authorization):
        message = "the header 'Authorization: Bearer TOKEN' is missing, or its token is not the service's"
        raise AdmissionError(401, FailureKind.INVALID_REQUEST, message)


def _as_bearer(header: str) -> str:
    """Header as a bearer token, which may be the password of basic authentication, as in http://any:TOKEN@host."""
    scheme, _, credentials = header.partition(" ")
    if scheme.lower() != "basic":
        return header
    try:
        _, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except ValueError:
        return ""
    return f"Bearer {password}"


async def read_body(request: web.Request, budget: ByteBudget, seconds: float) -> bytes:
    """The body of a request.

    Args:
        request: A request with a Content-Length.
        budget: Bytes that the service may hold.
        seconds: Time for the body to arrive.

    Raises:
        AdmissionError: If the body is too large or too slow, or the service holds too much already.
    """
    length = request.content_length
    if length is None:
        raise AdmissionError(411, FailureKind.INVALID_REQUEST, "the header Content-Length is missing")
    if length > MAX_BODY_BYTES:
        message = f"a body of {length} bytes is larger than {MAX_BODY_BYTES}; send fewer requests at a time"
        raise AdmissionError(413, FailureKind.TOO_LARGE, message, bound=ServiceBound.BODY_BYTES)
    if not budget.reserve(length):
        message = f"the service already holds {budget.used} of at most {budget.limit} bytes; try again later"
        raise AdmissionError(
            429, FailureKind.OVERLOADED, message, retry_after_seconds=1.0, bound=ServiceBound.MAX_BYTES
        )
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError as error:
        message = f"the body did not arrive within {seconds:g} s"
        raise AdmissionError(408, FailureKind.INVALID_REQUEST, message, bound=ServiceBound.BODY_SECONDS) from error
    finally:
        budget.release(length)
