"""Text of a completion and its Turn -> Verdict: one function for profile, training and evaluation."""

from verl_pivot.rollout.actions import parse_action
from verl_pivot.types import Malformed, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier


async def score_completion(text: str, ended: bool, turn: Turn) -> Verdict:
    """Score one sampled action; a completion that is no action scores 0 with the parser's reason.

    Args:
        text: The completion without its end-of-turn token.
        ended: Whether the policy ended its turn by itself.
        turn: Where the action was sampled; names the verifier.

    Raises:
        ConfigError: If the turn's verifier is not registered.
    """
    action = parse_action(text, ended=ended)
    if isinstance(action, Malformed):
        return Verdict(score=0.0, reason=action.reason, detail=action.detail)
    return await get_verifier(turn.verifier, turn.verifier_options)(action, turn)
