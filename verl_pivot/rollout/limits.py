"""RolloutLimits: bounds on the turns, tokens and seconds of one rollout with tools."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """What one rollout may use; the first limit that is reached ends it.

    Example:
        RolloutLimits(max_response_tokens=8192, max_turns=10)
    """

    max_response_tokens: int
    """Tokens after the prompt, sampled by the policy or given back by tools: verl's rollout.response_length."""
    max_turns: int = 10
    """Turns of the policy (T in rStar2-Agent)."""
    max_turn_tokens: int | None = None
    """Tokens sampled in one turn; None: as many as are left of the response."""
    max_observation_tokens: int = 1024
    """Tokens of the text that one call gives back; a longer text loses its middle, and says so."""
    max_wall_seconds: float = 1800.0
    """Seconds after which no turn and no call begins; what has begun by then is finished."""

    def turn_budget(self, num_response_tokens: int) -> int:
        """Tokens that the next turn may have behind `num_response_tokens`; 0 if the response is full."""
        left = max(0, self.max_response_tokens - num_response_tokens)
        return left if self.max_turn_tokens is None else min(left, self.max_turn_tokens)
