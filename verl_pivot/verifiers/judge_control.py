"""Question about an action, control question -> the verdict; tells failures of the action from those of the judge."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from verl_pivot.errors import VerifierError
from verl_pivot.types import Verdict
from verl_pivot.verifiers.judge_client import UnansweredQuestionError, UnprovenAnswerError
from verl_pivot.verifiers.verdicts import Reason, refuse

Question: TypeAlias = Callable[[], Coroutine[Any, Any, Verdict]]


async def verdict_or_refusal(ask: Question, control: Question | None) -> Verdict:
    """The judge's verdict; if the question fails for this action alone, the action is at fault and is refused.

    Args:
        ask: Question about the action.
        control: The same question about the expert's action; if it fails too, nothing is decided. If the endpoint
            failed, it is asked about the action once more after the control. None if the action is the expert's.

    Raises:
        UnprovenAnswerError: If the judge answers, but proves nothing: an error of the judge is no fault of the action.
        VerifierError: If the endpoint and not the action is at fault.
    """
    try:
        return await ask()
    except UnprovenAnswerError:
        raise
    except VerifierError as error:
        if control is None:
            raise
        await _controlled(control)
        if isinstance(error, UnansweredQuestionError):
            return refuse(Reason.UNANSWERABLE, str(error))
    try:
        return await ask()
    except UnprovenAnswerError:
        raise
    except VerifierError as error:
        return refuse(Reason.UNANSWERABLE, str(error))


async def _controlled(control: Question) -> None:
    try:
        await control()
    except UnansweredQuestionError as error:
        raise VerifierError(
            f"{error}; the same question about the expert's action fails too: choose another answer_format "
            "(json_schema, json_object or text), or another model"
        ) from error
