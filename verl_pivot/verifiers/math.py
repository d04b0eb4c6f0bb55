"""Verifier `math`: an answer is right if math-verify, run in the sandbox, finds it equal to the expert's."""

from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.errors import SandboxError
from verl_pivot.extras import require
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.extraction import extract_answer
from verl_pivot.verifiers.math_batches import FormulaPair, PairResult, math_batches
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.sandboxed import sandbox_failed
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse

_MAX_CHARS = 2000


class MathOptions(Options):
    """Options of the verifier `math`."""

    place: Literal["boxed", "answer_tag", "boxed_in_answer_tag"] = "boxed"
    r"""Where the answer stands; rStar2-Agent has it in \boxed{} in <answer> (arXiv:2508.20722, section 2.2)."""
    answer: str | None = None
    """The right answer; None for the answer in the expert's action."""
    digits: Annotated[int, Field(ge=1, le=15)] = 6
    """Digits of floating-point numbers that are compared."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Seconds for one pair of formulas."""


@register("math", options=MathOptions)
class MathVerifier:
    """Compares one answer with the expert's; the score is 0 or 1.

    Several different answers, or several formulas in one box, count as no answer.
    """

    def __init__(self, options: MathOptions) -> None:
        require("math_verify", "math")  # imported by the program in the sandbox
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        options = self._options
        expert = self._answer_of(turn.expert.content) if options.answer is None else _row_answer(options.answer)
        if isinstance(expert, Verdict) or (turn.expert.tool_calls and options.answer is None):
            return broken_expert("there is no answer, or several, to compare with")
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE)
        answer = self._answer_of(action.content)
        if isinstance(answer, Verdict):
            return answer
        if answer == expert:
            return Verdict.accept()
        try:
            pair = FormulaPair(expert, answer, options.digits, options.wall_seconds)
            result = await (await math_batches.get()).compare(pair)
        except SandboxError as error:
            return sandbox_failed(error)
        return _verdict(result, answer)

    def _answer_of(self, text: str) -> str | Verdict:
        place = self._options.place
        found = extract_answer(text, "boxed" if place == "boxed" else "answer_tag")
        if place == "boxed_in_answer_tag" and isinstance(found, str):
            found = extract_answer(found, "boxed")
        return _one_formula(found) if isinstance(found, str) else found


def _row_answer(answer: str) -> str | Verdict:
    """The answer that a row gives, which may stand in a box or between dollars."""
    boxed = extract_answer(answer, "boxed") if "\\boxed" in answer else answer
    return _one_formula(boxed) if isinstance(boxed, str) else boxed


def _one_formula(text: str) -> str | Verdict:
    """The formula without the dollars around it. Dollars inside make several, of which the parser would take one."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "$":
        text = text.strip("$").strip()
    if "$" in text or "\\boxed" in text or "\\[" in text or "\\(" in text:
        return refuse(Reason.SEVERAL_ANSWERS)
    if len(text) > _MAX_CHARS:
        return refuse(Reason.TOO_LONG)
    return text or refuse(Reason.NO_ANSWER)


def _verdict(result: PairResult, answer: str) -> Verdict:
    if "ended" in result:
        return refuse(Reason(result["ended"]), answer[:200])
    if not result["has_expert"]:
        return broken_expert("the right answer is no formula")
    if not result["has_answer"]:
        return refuse(Reason.NO_ANSWER, answer[:200])
    if result["same"]:
        return Verdict.accept()
    return refuse(Reason.WRONG_VALUE, answer[:200])
