"""A question about an action and a control question -> the verdict, or whose fault it is that there is none."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from verl_pivot.errors import VerifierError
from verl_pivot.types import Verdict
from verl_pivot.verifiers.judge_client import UnansweredQuestionError, UnprovenAnswerError
from verl_pivot.verifiers.verdicts import Reason, refuse

Question: TypeAlias = Callable[[], Coroutine[Any, Any, Verdict]]


async def verdict_or_refusal(ask: Question, control: Question | None) -> Verdict:
    """The judge's verdict. What makes only the question about this action fail is this action, which is refused.

    Args:
        ask: Question about the action.
        control: The same question about the expert's action; where it fails too, nothing is decided. An endpoint that
            failed is asked about the action once more behind it. None where the action is the expert's.

    Raises:
        UnprovenAnswerError: If the judge answers, but proves nothing: a judge that errs is no fault of the action.
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
