"""Verifiers `first_decided` (several asked in turn) and `weighted` (the mean of several)."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import get_verifier, register
from verl_pivot.verifiers.verdicts import Reason


class VerifierPart(Options):
    """One verifier of several, with its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class FirstDecidedPart(VerifierPart):
    decides: Literal["both", "acceptance", "refusal"] = "both"
    """Verdicts of this verifier that are final; after any other the next verifier is asked."""


class WeightedPart(VerifierPart):
    weight: Annotated[float, Field(gt=0.0)] = 1.0


class FirstDecidedOptions(Options):
    """Options of the verifier `first_decided`."""

    verifiers: Annotated[tuple[FirstDecidedPart, ...], Field(min_length=1)]


class WeightedOptions(Options):
    """Options of the verifier `weighted`."""

    verifiers: Annotated[tuple[WeightedPart, ...], Field(min_length=1)]


@register("first_decided", options=FirstDecidedOptions)
class FirstDecidedVerifier:
    """Gives the first verdict that is final. List the verifiers from the cheapest to the most expensive.

    Example:
        {"verifiers": [{"name": "tool_call", "options": {"mode": "strict"}, "decides": "acceptance"},
                       {"name": "tool_call"}]}

    Undecided if no verdict is final.
    """

    def __init__(self, options: FirstDecidedOptions) -> None:
        self._parts = options.verifiers
        self._verifiers = [get_verifier(part.name, part.options) for part in self._parts]

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        reasons: list[str] = []
        for part, verifier in zip(self._parts, self._verifiers, strict=True):
            verdict = await verifier(action, turn)
            if _is_final(verdict, part):
                return verdict
            reasons.append(f"{part.name}: {verdict.reason}")
        return Verdict.undecided(Reason.NOBODY_DECIDED, "; ".join(reasons))


def _is_final(verdict: Verdict, part: FirstDecidedPart) -> bool:
    if verdict.score is None:
        return False
    return part.decides == "both" or (verdict.score == 1.0) == (part.decides == "acceptance")


@register("weighted", options=WeightedOptions)
class WeightedVerifier:
    """Gives the weighted mean of the scores; undecided if one verifier is. All verifiers are asked at the same time."""

    def __init__(self, options: WeightedOptions) -> None:
        self._parts = options.verifiers
        self._verifiers = [get_verifier(part.name, part.options) for part in self._parts]

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        verdicts = await asyncio.gather(*(verifier(action, turn) for verifier in self._verifiers))
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        if len(scores) < len(verdicts):
            return next(verdict for verdict in verdicts if verdict.score is None)
        weights = [part.weight for part in self._parts]
        score = sum(weight * each for weight, each in zip(weights, scores, strict=True)) / sum(weights)
        parts = zip(self._parts, verdicts, strict=True)
        detail = "; ".join(f"{part.name}: {each.score:g} {each.reason}" for part, each in parts)
        return Verdict(score=min(score, 1.0), reason=_common_reason(verdicts), detail=detail)


def _common_reason(verdicts: Sequence[Verdict]) -> str:
    """Reason of a mean: accepted, partial, or the first verifier's reason where all scores are 0."""
    if all(verdict.score == 1.0 for verdict in verdicts):
        return Reason.ACCEPTED
    return Reason.PARTIAL if any(verdict.score for verdict in verdicts) else verdicts[0].reason
