"""Requests to inference servers: which failures are retried, and the error message of each."""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from verl_pivot.errors import ConfigError, EngineError
from verl_pivot.types import Json

ResultT = TypeVar("ResultT")
CHECK_URL = "check that the URL is that of an inference server"
_CHECK_MODEL = "check the name of the model, and that the URL is that of its server"
_UNKNOWN_MODEL = re.compile(r"model_not_found|\bmodel\b.{0,200}?\b(?:not exist|not found|not available)\b", re.I | re.S)
"""Pattern in the answers of vLLM, OpenAI and others, with status 404, about a model that they do not serve."""
TOO_LONG = "if it says that the context is too long, lower --max-prompt-tokens or --max-new-tokens"
LONGEST_ASKED_SECONDS = 60.0
"""Upper bound of a wait that a server asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How requests are retried after failed connections, timeouts and HTTP status 408, 409, 429 or 5xx.

    The waits between attempts are random, and their upper bound doubles each time.
    """

    num_attempts: int = 6
    """Total number of attempts, including the first."""
    longest_wait_seconds: float = 20.0
    """Upper bound of the random wait between two attempts."""
    timeout_seconds: float = 1800.0
    """Timeout of one attempt; a group of long completions on a busy server may take many minutes."""


class UnavailableError(EngineError):
    """A failure that may be temporary, so that a retry can succeed."""

    def __init__(
        self, message: str, retry_after_seconds: float = 0.0, *, may_concern_one_question: bool = False
    ) -> None:
        """Keep what is known about the failure.

        Args:
            message: The error message.
            retry_after_seconds: Seconds that the server asks to wait; 0 if it does not ask.
            may_concern_one_question: Whether a server that works may fail in this way at a question, at each attempt.
        """
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.may_concern_one_question = may_concern_one_question


class AccountError(ConfigError):
    """A server refuses the key of every request, or has none of the credit that it costs."""


class UnknownModelError(EngineError):
    """A server works, but does not serve the model of the request."""


def check_status(url: str, status: int, body: str, retry_after: str, remedy: str) -> None:
    """Refuse an answer whose HTTP status is not a success.

    Args:
        url: Address of the server, for messages.
        status: HTTP status.
        body: Text of the answer.
        retry_after: Header Retry-After; "" if there is none.
        remedy: Advice to the user if the server refuses the request itself.

    Raises:
        UnavailableError: If the failure may be temporary.
        ConfigError: If the server refuses the request itself; AccountError if it refuses its key, or asks for money.
        UnknownModelError: If the server does not serve the model.
        EngineError: If the server knows no such path, so that it is no inference server.
    """
    if status in (408, 409, 429) or status >= 500:
        raise UnavailableError(
            f"{url} kept answering with status {status}: {excerpt(body)}; see the server's log, and run the same "
            "command again once the server works",
            retry_after_seconds=float(retry_after) if retry_after.isdecimal() else 0.0,
            may_concern_one_question=status == 500,
        )
    if status == 404 and _UNKNOWN_MODEL.search(body):
        raise UnknownModelError(f"{url} answered with status 404: {excerpt(body)}; {_CHECK_MODEL}")
    if status == 404:
        raise EngineError(f"{url} answered with status 404: {excerpt(body)}; {CHECK_URL}")
    if status in (401, 403):
        refusal = AccountError if status == 401 else ConfigError  # moderated gateways answer 403 to single questions
        raise refusal(
            f"{url} refused the key (status {status}): {excerpt(body)}; set the environment variable of its API key"
        )
    if status == 402:
        raise AccountError(
            f"{url} asks for payment (status 402): {excerpt(body)}; add credit to the account of its key"
        )
    raise ConfigError(f"{url} refused the request (status {status}): {excerpt(body)}; {remedy}")


def may_concern_one_question(error: Exception) -> bool:
    """Whether a server that answers other questions may refuse this one, or fail at it, at each attempt."""
    if isinstance(error, ConfigError):
        return not isinstance(error, AccountError)
    return isinstance(error, UnavailableError) and error.may_concern_one_question


async def with_retries(retries: Retries, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Result of `attempt()`, which is retried as `retries` says while it raises UnavailableError."""
    grows = wait_random_exponential(multiplier=0.5, max=retries.longest_wait_seconds)
    retrying = AsyncRetrying(
        stop=stop_after_attempt(retries.num_attempts),
        wait=lambda state: max(grows(state), min(_asked_seconds(state), LONGEST_ASKED_SECONDS)),
        retry=retry_if_exception_type(UnavailableError),
        reraise=True,
    )

    async def run() -> ResultT:  # tenacity awaits only coroutine functions, which a lambda is not
        return await attempt()

    return await retrying(run)


def _asked_seconds(state: RetryCallState) -> float:
    """Seconds that the server asked to wait after the last attempt."""
    error = state.outcome.exception() if state.outcome is not None else None
    return error.retry_after_seconds if isinstance(error, UnavailableError) else 0.0


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


def not_json(url: str, body: bytes) -> str:
    """Error message for an answer that is not JSON."""
    return f"{url} answered with something that is not JSON: {excerpt(body.decode(errors='replace'))}; {CHECK_URL}"
