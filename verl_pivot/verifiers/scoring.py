"""Text of one completion and its Turn -> Verdict: the function that profiling, training and evaluation share."""

import inspect

from verl_pivot.data.actions import parse_action
from verl_pivot.errors import OptionsError, PivotError, UserCodeError, VerifierError
from verl_pivot.off_loop import run_off_loop, size_of_value
from verl_pivot.types import Malformed, Message, Turn, Verdict
from verl_pivot.user_code import named, place_of
from verl_pivot.verifiers.registry import get_verifier
from verl_pivot.verifiers.verdicts import Reason, undecided


async def score_completion(text: str, ended: bool, turn: Turn) -> Verdict:
    """Score one sampled completion; text that is no action scores 0 with the parser's reason.

    Args:
        text: The completion without its end-of-turn token.
        ended: Whether the policy ended its turn by itself.
        turn: The turn that the completion was sampled at; it names the verifier.

    Raises:
        ConfigError: If the turn's verifier is not registered.
        UserCodeError: If the verifier raises or gives no Verdict.
        VerifierError: If a system that the verifier asks cannot be reached.
    """
    action = await run_off_loop(len(text), parse_action, text, ended=ended)
    if isinstance(action, Malformed):
        return Verdict.refuse(action.reason, action.detail)
    return await score_message(action, turn)


async def score_message(action: Message, turn: Turn) -> Verdict:
    """Score one action; a failure of the verifier's own code is raised with the turn and the place in the code.

    Undecided if the verifier does not take the turn's options, which is a mistake of one row.

    Raises:
        ConfigError: If the turn's verifier is not registered.
        UserCodeError: If the verifier raises or gives no Verdict.
        VerifierError: If a system that the verifier asks cannot be reached.
    """
    try:
        size = size_of_value(turn.verifier_options)
        verifier = await run_off_loop(size, get_verifier, turn.verifier, turn.verifier_options)
    except OptionsError as error:
        return undecided(Reason.BAD_OPTIONS, f"turn {turn.id}: {error}")
    try:
        coming = verifier(action, turn)
        verdict = await coming if inspect.isawaitable(coming) else coming
    except PivotError:
        raise
    except Exception as error:  # the user's own code, which may raise anything
        kind = VerifierError if isinstance(error, OSError) else UserCodeError
        raise kind(f"verifier {turn.verifier!r} raised {named(error)} at turn {turn.id} ({place_of(error)})") from error
    if not inspect.isawaitable(coming):
        raise UserCodeError(f"verifier {turn.verifier!r} is not async; define it with `async def`")
    if not isinstance(verdict, Verdict):
        raise UserCodeError(
            f"verifier {turn.verifier!r} returned {verdict!r:.80} at turn {turn.id}; return Verdict.accept(), "
            "Verdict.refuse(reason) or Verdict.undecided(reason)"
        )
    return verdict


async def score_expert(turn: Turn) -> Verdict:
    """Ask a turn's verifier twice about the expert's own action; undecided if the verdicts differ.

    Raises:
        ConfigError: If the turn's verifier is not registered.
        UserCodeError: If the verifier raises or gives no Verdict.
        VerifierError: If a system that the verifier asks cannot be reached.
    """
    first, second = await score_message(turn.expert, turn), await score_message(turn.expert, turn)
    if first.score is not None and second.score is not None and first.score != second.score:
        return undecided(
            Reason.EXPERT_WAVERS, f"{first.score:g} ({first.reason}), then {second.score:g}: {second.detail}"
        )
    return first if first.score is None else second
