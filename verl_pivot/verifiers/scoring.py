"""Text of one completion and its Turn -> Verdict: the function that profiling, training and evaluation share."""

from verl_pivot.data.actions import parse_action
from verl_pivot.types import Malformed, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier


async def score_completion(text: str, ended: bool, turn: Turn) -> Verdict:
    """Score one sampled completion; text that is no action scores 0 with the parser's reason.

    Args:
        text: The completion without its end-of-turn token.
        ended: Whether the policy ended its turn by itself.
        turn: The turn that the completion was sampled at; it names the verifier.

    Raises:
        ConfigError: If the turn's verifier is not registered.
    """
    action = parse_action(text, ended=ended)
    if isinstance(action, Malformed):
        return Verdict.refuse(action.reason, action.detail)
    return await get_verifier(turn.verifier, turn.verifier_options)(action, turn)
