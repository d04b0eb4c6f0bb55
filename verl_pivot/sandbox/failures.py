"""Why a request has no result, as service and client tell each other; whose fault it is, and whether to try again."""

from dataclasses import dataclass
from enum import StrEnum

from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError


class FailureKind(StrEnum):
    """Why there is no result."""

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
    def is_the_callers(self) -> bool:
        """The request itself is wrong: another try or node would refuse it too."""
        return self in _THE_CALLERS

    @property
    def retryable(self) -> bool:
        return not self.is_the_callers and self not in (FailureKind.CANCELLED, FailureKind.SESSION_LOST)


_THE_CALLERS = frozenset(
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
        Failure(kind=FailureKind.OVERLOADED, message="8192 requests wait already", retry_after_seconds=0.5)
    """

    kind: FailureKind
    message: str
    retry_after_seconds: float | None = None

    def as_error(self) -> SandboxRequestError | SandboxError:
        """What the client raises for it."""
        if self.kind.is_the_callers:
            return SandboxRequestError(self.message)
        if self.kind is FailureKind.SESSION_LOST:
            return SessionLostError(self.message)
        return SandboxError(f"{self.kind}: {self.message}")
