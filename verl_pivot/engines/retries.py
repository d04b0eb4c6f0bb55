"""Requests to inference servers: what is retried, and what each failure says."""

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
    """How requests are repeated after refused connections, timeouts and status 429 or 5xx; waits double, jittered."""

    attempts: int = 6
    longest_wait_seconds: float = 20.0
    timeout_seconds: float = 1800.0
    """Seconds for one request; a group of long completions on a busy server takes many."""


class UnavailableError(EngineError):
    """A failure that may pass, so that another attempt is worth it."""


def check_status(url: str, status: int, body: str) -> None:
    """Refuse an answer whose status is not a success.

    Raises:
        UnavailableError: If it may pass.
        ConfigError: If the server refuses the request itself.
        EngineError: If nothing is served there.
    """
    if status in (408, 409, 429) or status >= 500:
        raise UnavailableError(
            f"{url} kept answering {status}: {excerpt(body)}; see the server's log, and run the same "
            "command again once it is well"
        )
    if status == 404:
        raise EngineError(f"{url} answered 404; {CHECK_URL}, without a path")
    if status >= 400:
        raise ConfigError(
            f"{url} refused the request ({status}): {excerpt(body)}; lower --max-prompt-tokens or "
            "--max-new-tokens where it says the context is too long"
        )


async def with_retries(retries: Retries, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Await `attempt()`, again as often as `retries` allows while it raises UnavailableError."""
    retrying = AsyncRetrying(
        stop=stop_after_attempt(retries.attempts),
        wait=wait_random_exponential(multiplier=0.5, max=retries.longest_wait_seconds),
        retry=retry_if_exception_type(UnavailableError),
        reraise=True,
    )

    async def run() -> ResultT:  # tenacity awaits what it sees is a coroutine function, and no lambda
        return await attempt()

    return await retrying(run)


def http_client(url: str, retries: Retries) -> httpx.AsyncClient:
    """A client for any number of long requests at once."""
    return httpx.AsyncClient(
        timeout=httpx.Timeout(retries.timeout_seconds, connect=10.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"),  # no proxy leads back here
    )


def unreachable(url: str, error: Exception) -> str:
    """The sentence for a connection that failed."""
    return (
        f"{url} cannot be reached ({type(error).__name__}: {error}); see the server's log, and run the same "
        "command again once it is up"
    )


def excerpt(value: Json) -> str:
    """The first characters of an answer, quoted in an error."""
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= 200 else text[:200] + "...")
