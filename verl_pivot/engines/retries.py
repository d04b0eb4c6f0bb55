"""Requests to inference servers: which failures are retried, and the error message of each."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.types import Json

ResultT = TypeVar("ResultT")
CHECK_URL = "check that the URL is that of an inference server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How requests are repeated after refused connections, timeouts and status 429 or 5xx.

    The waits between attempts are random, and their upper bound doubles each time.
    """

    num_attempts: int = 6
    """Attempts in all, the first one included."""
    longest_wait_seconds: float = 20.0
    """Upper bound of the wait between two attempts."""
    timeout_seconds: float = 1800.0
    """Timeout of one attempt; a group of long completions on a busy server may take many minutes."""


class UnavailableError(EngineError):
    """A failure that may pass, so that another attempt is worth it."""


def check_status(url: str, status: int, body: str) -> None:
    """Refuse an answer whose HTTP status is not a success.

    Raises:
        UnavailableError: If the failure may pass.
        ConfigError: If the server refuses the request itself.
        EngineError: If the server knows no such path, so that it is no inference server.
    """
    if status in (408, 409, 429) or status >= 500:
        raise UnavailableError(
            f"{url} kept answering with status {status}: {excerpt(body)}; see the server's log, and run the same "
            "command again once the server works"
        )
    if status == 404:
        raise EngineError(f"{url} answered with status 404; {CHECK_URL}, without a path")
    if status >= 400:
        raise ConfigError(
            f"{url} refused the request (status {status}): {excerpt(body)}; if it says that the context is too "
            "long, lower --max-prompt-tokens or --max-new-tokens"
        )


async def with_retries(retries: Retries, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Result of `attempt()`, repeated as `retries` says while it raises UnavailableError."""
    retrying = AsyncRetrying(
        stop=stop_after_attempt(retries.num_attempts),
        wait=wait_random_exponential(multiplier=0.5, max=retries.longest_wait_seconds),
        retry=retry_if_exception_type(UnavailableError),
        reraise=True,
    )

    async def run() -> ResultT:  # tenacity awaits only coroutine functions, which a lambda is not
        return await attempt()

    return await retrying(run)


def http_client(url: str, retries: Retries) -> httpx.AsyncClient:
    """HTTP client for any number of long requests at once."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(retries.timeout_seconds, connect=10.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        # A proxy of the environment cannot reach this machine's loopback address.
        trust_env=urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"),
    )


def unreachable(url: str, error: Exception) -> str:
    """Error message for a connection that failed."""
    return (
        f"{url} cannot be reached ({type(error).__name__}: {error}); see the server's log, and run the same "
        "command again once it is up"
    )


def excerpt(value: Json) -> str:
    """First 200 characters of an answer, quoted for an error message."""
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= 200 else text[:200] + "...")
