"""RolloutLimits: bounds on the turns, tokens and seconds of one rollout with tools."""

from dataclasses import dataclass

from verl_pivot.data.rollout_records import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """Limits of one rollout; the first one that is reached ends it.

    Example:
        RolloutLimits(max_response_tokens=8192, max_turns=10)
    """

    max_response_tokens: int
    """Most tokens after the prompt, those of observations included: verl's `rollout.response_length`."""
    max_turns: int = 10
    """Most turns that the policy may take (T in rStar2-Agent)."""
    max_turn_tokens: int | None = None
    """Most tokens that the policy may sample in one turn; None: as many as the response has left."""
    retries_cut_turns: bool = False
    """Whether a turn that `max_turn_tokens` alone cut off counts as one without an action, instead of the last."""
    max_observation_tokens: int = 1024
    """Most tokens of one observation; in a longer one a note replaces the middle."""
    max_wall_seconds: float = 1800.0
    """Seconds after which no new turn and no new call begins; a turn or call that has begun is finished."""

    def turn_budget(self, num_response_tokens: int) -> int:
        """Most tokens of the next turn, given the response's tokens so far; 0 if the response is full."""
        left = max(0, self.max_response_tokens - num_response_tokens)
        return left if self.max_turn_tokens is None else min(left, self.max_turn_tokens)

    def stop_after(self, num_turns: int, *, is_answer: bool, is_late: bool) -> StopReason | None:
        """Why a rollout ends with a turn that the policy ended by itself; None if the turn's calls are run.

        Args:
            num_turns: Turns of the policy so far, this one included.
            is_answer: Whether the turn is an answer.
            is_late: Whether the rollout has reached `max_wall_seconds`.
        """
        if is_answer:
            return StopReason.ANSWERED
        if num_turns >= self.max_turns:
            return StopReason.MAX_TURNS
        return StopReason.MAX_WALL_SECONDS if is_late else None

    def stop_after_cut(self, num_tokens: int, num_turns: int, *, is_late: bool) -> StopReason | None:
        """Why a rollout ends with a turn that was cut off; None if the policy reads the retry message.

        Args:
            num_tokens: Tokens of the turn.
            num_turns: Turns of the policy so far, this one included.
            is_late: Whether the rollout has reached `max_wall_seconds`.
        """
        if num_tokens != self.max_turn_tokens:
            return StopReason.MAX_RESPONSE_TOKENS
        if not self.retries_cut_turns:
            return StopReason.MAX_TURN_TOKENS
        return self.stop_after(num_turns, is_answer=False, is_late=is_late)
