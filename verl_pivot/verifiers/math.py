"""Verifier `math`: an answer is right if math-verify, run in the sandbox, finds it equal to the expert's."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.errors import SandboxError
from verl_pivot.extras import require
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.asked_once import AskedOnce
from verl_pivot.verifiers.extraction import extract_answer
from verl_pivot.verifiers.math_batches import FormulaPair, PairResult, math_batches
from verl_pivot.verifiers.math_equality import FormulaChoice, Mismatch, needed_equalities
from verl_pivot.verifiers.math_texts import read_math_answer
from verl_pivot.verifiers.registry import register
from verl_pivot.verifiers.sandboxed import sandbox_failed
from verl_pivot.verifiers.verdicts import Reason, broken_expert, refuse, undecided

_MAX_CHARS = 2000
_NO_ANSWERS = frozenset({"None", "null", "nan", "NaN"})
"""Words that programs write if they have no answer."""
_PROBE = "1234567"
"""A number that is no expert's answer, to test whether the expert's formula can be compared in time."""
_problems: AskedOnce[FormulaPair, str] = AskedOnce(4096)
_read_kept = lru_cache(maxsize=4096)(read_math_answer)


class MathOptions(Options):
    """Options of the verifier `math`."""

    place: Literal["boxed", "answer_tag", "boxed_in_answer_tag", "all"] = "boxed"
    r"""Where the answer stands; `boxed_in_answer_tag` is \boxed{} inside <answer>, as in rStar2-Agent
    (arXiv:2508.20722, section 2.2)."""
    answer: str | None = None
    """The right answer; None for the answer in the expert's action."""
    digits: Annotated[int, Field(ge=1, le=15)] = 6
    """Number of significant digits to which floating-point numbers are compared."""
    wall_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 10.0
    """Limit on the time to compare one pair of formulas, in CPU seconds."""


@register("math", options=MathOptions)
class MathVerifier:
    """Compares one answer with the expert's; the score is 0 or 1.

    Several different answers, or several formulas in one box, count as no answer. Units, bases, brackets, letters and
    the sides of equations are compared as texts, before anything is calculated.
    """

    def __init__(self, options: MathOptions) -> None:
        require("math_verify", "math")  # imported by the program in the sandbox
        self._options = options

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        options = self._options
        expert_text = self._answer_of(turn.expert.content) if options.answer is None else _row_answer(options.answer)
        if isinstance(expert_text, Verdict) or (turn.expert.tool_calls and options.answer is None):
            return broken_expert("the row must give one right answer, in the expert's action or in the option answer")
        expert = _read_kept(expert_text)
        if expert is None or expert.letters in _NO_ANSWERS:
            return broken_expert(f"the right answer {expert_text[:100]!r} is not a formula, with or without a unit")
        if action.tool_calls:
            return refuse(Reason.CALL_INSTEAD_OF_MESSAGE)
        text = self._answer_of(action.content)
        if isinstance(text, Verdict):
            return text
        answer = read_math_answer(text)
        if answer is None:
            return refuse(Reason.WRONG_VALUE, f"the words after the formula are not a unit: {text[:200]}")
        needed = needed_equalities(answer, expert)
        if isinstance(needed, Mismatch):
            return refuse(Reason.WRONG_VALUE, f"{needed.what}: {text[:200]}")
        try:
            return await self._calculate(needed, text)
        except SandboxError as error:
            return sandbox_failed(error)

    async def _calculate(self, needed: Sequence[FormulaChoice], answer: str) -> Verdict:
        for choice in needed:
            verdicts = [await self._compare(expert, formula, answer) for expert, formula in choice.pairs]
            best = max(verdicts, key=lambda verdict: verdict.score or 0.0)
            if best.score != 1.0:
                return next((each for each in verdicts if each.score is None), best)
        return Verdict.accept()

    async def _compare(self, expert: str, formula: str, answer: str) -> Verdict:
        result = (
            {"has_expert": True, "has_answer": True, "same": True}
            if formula == expert
            else await (await math_batches.get()).ask(None, self._pair(expert, formula))
        )
        if formula == expert or "ended" in result:
            problem = await _problem_of_expert(self._pair(expert, _PROBE))
            if problem:
                reason = Reason.EXPERT_TIME_LIMIT if problem == Reason.TIME_LIMIT else Reason.BROKEN_EXPERT
                return undecided(reason, f"{expert[:200]} cannot be compared with any number: {problem}")
        return _verdict(result, answer)

    def _pair(self, expert: str, formula: str) -> FormulaPair:
        return FormulaPair(expert, formula, self._options.digits, self._options.wall_seconds)

    def _answer_of(self, text: str) -> str | Verdict:
        place = self._options.place
        found = extract_answer(text, "answer_tag" if place == "boxed_in_answer_tag" else place)
        if place == "boxed_in_answer_tag" and isinstance(found, str):
            found = extract_answer(found, "boxed")
        return _one_formula(found) if isinstance(found, str) else found


async def _problem_of_expert(pair: FormulaPair) -> str:
    """Reason why the expert's formula cannot be compared with any number, found once per formula; "" if it can be."""
    return await _problems.get(pair, lambda: _find_problem(pair))


async def _find_problem(pair: FormulaPair) -> str:
    result = await (await math_batches.get()).ask(None, pair)
    return "math-verify cannot parse it" if not result.get("has_expert", True) else str(result.get("ended", ""))


def _row_answer(answer: str) -> str | Verdict:
    """The answer that a row gives, which may stand in a box or between dollars."""
    boxed = extract_answer(answer, "boxed") if "\\boxed" in answer or "\\fbox" in answer else answer
    return _one_formula(boxed) if isinstance(boxed, str) else boxed


def _one_formula(text: str) -> str | Verdict:
    """The formula without dollar signs around it; those inside mean several formulas, and the parser would take one."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "$" and not text.endswith("\\$"):
        text = text.strip("$").strip()
    if "$" in text.replace("\\$", "") or "\\boxed" in text or "\\[" in text or "\\(" in text:
        return refuse(Reason.SEVERAL_ANSWERS)
    if len(text) > _MAX_CHARS:
        return refuse(Reason.TOO_LONG)
    return text or refuse(Reason.NO_ANSWER)


def _verdict(result: PairResult, answer: str) -> Verdict:
    if "ended" in result:
        return refuse(Reason(result["ended"]), answer[:200])
    if not result["has_expert"]:
        return broken_expert("math-verify cannot parse the right answer")
    if not result["has_answer"]:
        return refuse(Reason.NO_ANSWER, answer[:200])
    if result["same"]:
        return Verdict.accept()
    return refuse(Reason.WRONG_VALUE, answer[:200])
