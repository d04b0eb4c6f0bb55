"""Verifiers `first_decided` (asks several verifiers in turn) and `weighted` (combines the scores of several)."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from verl_pivot.all_at_once import all_at_once
from verl_pivot.types import Message, Turn, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.registry import get_verifier, register
from verl_pivot.verifiers.verdicts import Reason

_MOST_NESTED = 8
"""Most levels of verifiers that may be nested within each other."""


def _nesting(value: object) -> int:
    """Number of nested levels of options with a key "verifiers"."""
    deepest, level = 0, [(value, 0)]
    while level and deepest <= _MOST_NESTED:
        deepest = max(depth for _, depth in level)
        level = [(child, depth + step) for each, depth in level for child, step in _inner(each)]
    return deepest


def _inner(value: object) -> list[tuple[object, int]]:
    if isinstance(value, dict):
        return [(each, int(name == "verifiers")) for name, each in value.items()]
    return [(each, 0) for each in value] if isinstance(value, list | tuple) else []


class VerifierPart(Options):
    """One verifier of several, with its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("options")
    @classmethod
    def _check_nesting(cls, options: dict[str, Any]) -> dict[str, Any]:
        if _nesting(options) > _MOST_NESTED:
            raise ValueError(f"verifiers may be nested at most {_MOST_NESTED} levels deep")
        return options


class FirstDecidedPart(VerifierPart):
    decides: Literal["both", "acceptance", "refusal"] = "both"
    """Verdicts of this verifier that are final; after any other verdict, the next verifier is asked."""
    min_accepted: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Smallest score that counts as an acceptance, if `decides` is `acceptance`."""
    max_refused: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Largest score that counts as a refusal, if `decides` is `refusal`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, decides in (("min_accepted", "acceptance"), ("max_refused", "refusal")):
            if name in self.model_fields_set and self.decides != decides:
                raise ValueError(f"{name} has no effect if decides is {self.decides!r}; set decides to {decides!r}")
        return self


class WeightedPart(VerifierPart):
    weight: Annotated[float, Field(ge=1e-9, le=1e6)] = 1.0
    """Weight of this verifier in the mean; the other rules take no weights."""
    min_score: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """If this verifier's score is below this value, the combined score is 0, whatever the other verifiers say."""


class FirstDecidedOptions(Options):
    """Options of the verifier `first_decided`."""

    verifiers: Annotated[tuple[FirstDecidedPart, ...], Field(min_length=1, max_length=100)]
    """Verifiers that are asked in this order, until one has decided."""


class WeightedOptions(Options):
    """Options of the verifier `weighted`."""

    verifiers: Annotated[tuple[WeightedPart, ...], Field(min_length=1, max_length=100)]
    """Verifiers whose scores are combined."""
    rule: Literal["mean", "min", "product"] = "mean"
    """
    mean: the weighted mean of the scores.
    min: the smallest score, so that all verifiers must accept.
    product: the product of the scores.
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rule != "mean" and any("weight" in part.model_fields_set for part in self.verifiers):
            raise ValueError(f"rule {self.rule!r} takes no weights; leave weight out, or set rule to 'mean'")
        return self


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
    if part.decides == "both":
        return True
    return verdict.score >= part.min_accepted if part.decides == "acceptance" else verdict.score <= part.max_refused


@register("weighted", options=WeightedOptions)
class WeightedVerifier:
    """Combines the scores of several verifiers, all asked at the same time: their weighted mean, minimum or product.

    A verdict that makes the combined score 0 decides alone: a score below the verifier's `min_score`, or a score of 0
    if the rule is `min` or `product`. Otherwise, the combined verdict is undecided if one of the verdicts is.
    """

    def __init__(self, options: WeightedOptions) -> None:
        self._parts = options.verifiers
        self._rule = options.rule
        self._verifiers = [get_verifier(part.name, part.options) for part in self._parts]

    async def __call__(self, action: Message, turn: Turn) -> Verdict:
        verdicts = await all_at_once(verifier(action, turn) for verifier in self._verifiers)
        parts = list(zip(self._parts, verdicts, strict=True))
        if (closed := next((each for part, each in parts if self._is_zero(each, part)), None)) is not None:
            return Verdict.refuse(closed.reason, closed.detail)
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        if len(scores) < len(verdicts):
            return next(verdict for verdict in verdicts if verdict.score is None)
        detail = "; ".join(f"{part.name}: {each.score:g} {each.reason}" for part, each in parts)
        return Verdict(score=min(self._combined(scores), 1.0), reason=_common_reason(verdicts), detail=detail)

    def _is_zero(self, verdict: Verdict, part: WeightedPart) -> bool:
        """Whether a verdict makes the combined score 0."""
        if verdict.score is None:
            return False
        return verdict.score < part.min_score or (self._rule != "mean" and verdict.score == 0.0)

    def _combined(self, scores: Sequence[float]) -> float:
        if self._rule == "min":
            return min(scores)
        if self._rule == "product":
            return math.prod(scores)
        weights = [part.weight for part in self._parts]
        return sum(weight * each for weight, each in zip(weights, scores, strict=True)) / sum(weights)


def _common_reason(verdicts: Sequence[Verdict]) -> str:
    """Reason of the combined score: accepted, partial, or the first verifier's reason where all scores are 0."""
    if all(verdict.score == 1.0 for verdict in verdicts):
        return Reason.ACCEPTED
    return Reason.PARTIAL if any(verdict.score for verdict in verdicts) else verdicts[0].reason
