"""Failure of a request, as the service reports it to the client: whose fault it is, and whether to try again."""

from dataclasses import dataclass
from enum import StrEnum

from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError


class FailureKind(StrEnum):
    """Why a request has no result."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED_LANGUAGE = "unsupported_language"
    TOO_LARGE = "too_large"
    SESSION_NOT_FOUND = "session_not_found"
    SESSION_BUSY = "session_busy"
    OVERLOADED = "overloaded"
    QUEUE_EXPIRED = "queue_expired"
    CANCELLED = "cancelled"
    SESSION_LOST = "session_lost"
    SANDBOX_ERROR = "sandbox_error"
    SHUTTING_DOWN = "shutting_down"

    @property
    def is_request_error(self) -> bool:
        """Whether the request itself is wrong, so that it would be refused again, by another node too."""
        return self in _REQUEST_ERRORS

    @property
    def is_retryable(self) -> bool:
        """Whether another attempt may succeed."""
        return not self.is_request_error and self not in (FailureKind.CANCELLED, FailureKind.SESSION_LOST)


class ServiceBound(StrEnum):
    """Bound of a service because of which a request was refused."""

    MAX_QUEUED = "max_queued"
    MAX_BYTES = "max_bytes"
    MAX_SESSIONS = "max_sessions"
    DEADLINE = "deadline"
    """The request's own deadline, which passes before its turn in the queue."""
    SHARE_OF_CLIENT = "share_of_client"
    """The queue is full, and the request's client has the most requests in it."""
    BODY_SECONDS = "body_seconds"
    BODY_BYTES = "body_bytes"


_REQUEST_ERRORS = frozenset(
    {
        FailureKind.INVALID_REQUEST,
        FailureKind.UNSUPPORTED_LANGUAGE,
        FailureKind.TOO_LARGE,
        FailureKind.SESSION_NOT_FOUND,
        FailureKind.SESSION_BUSY,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a request has no result.

    Example:
        Failure(kind=FailureKind.OVERLOADED, message="the queue is full", retry_after_seconds=0.5)
    """

    kind: FailureKind
    message: str
    retry_after_seconds: float | None = None
    """Seconds to wait before the next attempt; None if the node asks for no pause."""
    bound: ServiceBound | None = None
    """Bound that was hit, for the metrics of the service; clients read `message`. None for any other failure."""

    def as_error(self) -> SandboxRequestError | SandboxError:
        """Exception that the client raises for this failure."""
        if self.kind.is_request_error:
            return SandboxRequestError(self.message)
        if self.kind is FailureKind.SESSION_LOST:
            return SessionLostError(self.message)
        return SandboxError(f"{self.kind}: {self.message}")
