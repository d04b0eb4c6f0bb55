"""Text of one completion and its Turn -> Verdict: the function that profiling, training and evaluation share."""

import inspect
import sysconfig
import traceback
from pathlib import Path

import verl_pivot
from verl_pivot.data.actions import parse_action
from verl_pivot.errors import PivotError, VerifierError
from verl_pivot.types import Malformed, Message, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier

_NOT_THE_USERS = (
    str(Path(verl_pivot.__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",
)
"""Beginnings of file names of code that is not the user's: this package, libraries, and generated code."""


async def score_completion(text: str, ended: bool, turn: Turn) -> Verdict:
    """Score one sampled completion; text that is no action scores 0 with the parser's reason.

    Args:
        text: The completion without its end-of-turn token.
        ended: Whether the policy ended its turn by itself.
        turn: The turn that the completion was sampled at; it names the verifier.

    Raises:
        ConfigError: If the turn's verifier is not registered.
        VerifierError: If the verifier raises or gives no Verdict.
    """
    action = parse_action(text, ended=ended)
    if isinstance(action, Malformed):
        return Verdict.refuse(action.reason, action.detail)
    return await score_message(action, turn)


async def score_message(action: Message, turn: Turn) -> Verdict:
    """Score one action; a failure of the verifier's own code is raised with the turn and the place in the code.

    Raises:
        ConfigError: If the turn's verifier is not registered.
        VerifierError: If the verifier raises or gives no Verdict.
    """
    verifier = get_verifier(turn.verifier, turn.verifier_options)
    try:
        coming = verifier(action, turn)
        verdict = await coming if inspect.isawaitable(coming) else coming
    except PivotError:
        raise
    except Exception as error:  # the user's own code, which may raise anything
        raise VerifierError(
            f"verifier {turn.verifier!r} raised {type(error).__name__}: {error} at turn {turn.id} ({_place_of(error)})"
        ) from error
    if not inspect.isawaitable(coming):
        raise VerifierError(f"verifier {turn.verifier!r} cannot be awaited; write `async def` before it")
    if not isinstance(verdict, Verdict):
        raise VerifierError(
            f"verifier {turn.verifier!r} returned {verdict!r:.80} at turn {turn.id}; return Verdict.accept(), "
            "Verdict.refuse(reason) or Verdict.undecided(reason)"
        )
    return verdict


def _place_of(error: Exception) -> str:
    """File, line and function of the user's code in which an exception arose, or of ours if none is the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}"
