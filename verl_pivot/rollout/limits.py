"""Bounds on one trajectory of the tool loop, and why a trajectory stopped."""

from dataclasses import dataclass
from enum import StrEnum


class StopReason(StrEnum):
    """Why a trajectory ended; exactly one of them."""

    ANSWERED = "answered"
    """The policy ended its turn and called nothing."""
    MAX_TURNS = "max_turns"
    """It wanted to go on after its last turn."""
    MAX_TURN_TOKENS = "max_turn_tokens"
    """A turn was cut off."""
    MAX_RESPONSE_TOKENS = "max_response_tokens"
    """A turn was cut off, or what the tools gave back would not have fitted."""
    MAX_WALL_SECONDS = "max_wall_seconds"
    TOOL_FAILURE = "tool_failure"
    """A tool or the sandbox broke: masked."""
    ENGINE_FAILURE = "engine_failure"
    """The engine gave back nothing, several times: masked."""

    @property
    def is_masked(self) -> bool:
        """The system failed: the trajectory says nothing about the policy."""
        return self in (StopReason.TOOL_FAILURE, StopReason.ENGINE_FAILURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """What one trajectory may use; whichever comes first ends it.

    Example:
        RolloutLimits(max_response_tokens=8192, max_turns=10)
    """

    max_response_tokens: int
    """Sampled and observed, after the prompt: verl's rollout.response_length."""
    max_turns: int = 10
    """Of the policy (rStar2-Agent's T)."""
    max_turn_tokens: int | None = None
    """Sampled in one turn; None: what is left of the response."""
    max_observation_tokens: int = 1024
    """Of the text that one call gives back; the middle of a longer one is left out, and it says so."""
    max_wall_seconds: float = 1800.0
    """Looked at between turns: no turn and no call begins later."""

    def turn_budget(self, num_response_tokens: int) -> int:
        """Tokens that the next turn may have; 0 when the response is full."""
        left = max(0, self.max_response_tokens - num_response_tokens)
        return left if self.max_turn_tokens is None else min(left, self.max_turn_tokens)
