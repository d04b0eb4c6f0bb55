"""Values of terms -> the reward that the terms add up to, with what each term was paid and why."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from verl_pivot.validation import Options

Number = Annotated[float, Field(allow_inf_nan=False)]
_NAME = r"^[a-z][a-z0-9_]*$"
_MOST_NESTED = 8


class Condition(Options):
    """Another term, and the value that it must reach."""

    term: str
    at_least: Number


class TermVerifier(Options):
    """A verifier that gives a term its value."""

    name: str
    options: dict[str, Any] | None = None
    """Options of the verifier; None for those of the row."""


class Term(Options):
    """One term of a reward: `weight * value + offset` where it is paid, and 0 where it is not."""

    value: str | None = None
    """Name of a value that every rollout has, such as outcome or turns."""
    verifier: TermVerifier | None = None
    terms: Annotated[dict[Annotated[str, Field(pattern=_NAME)], "Term"], Field(min_length=1)] | None = None
    """Terms whose sum is the value."""
    scale: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | Literal["max_turns"] = 1.0
    """Divisor of the value: a number, or `max_turns` for the largest number of turns."""
    inverted: bool = False
    """Whether the value after the scale is replaced by 1 - value."""
    bounds: tuple[Number, Number] | None = None
    """Smallest and largest value. A value outside is moved to the nearer bound."""
    weight: Number = 1.0
    offset: Number = 0.0
    only_if: Condition | None = None
    paid_on: Literal["success", "all"] | None = None
    """Whether the term is paid on successful rollouts alone, or on all. None means `success` if the weight is negative,
    else `all`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        sources = [name for name in ("value", "verifier", "terms") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(f"a term must have one of value, verifier and terms, got {', '.join(sources) or 'none'}")
        if self.weight == 0.0:
            raise ValueError("a term of weight 0 is never paid: leave the term out, or give it a weight")
        if self.bounds is not None and self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"bounds must be the smallest and the largest value, got {list(self.bounds)}")
        return self

    @property
    def is_paid_on_success(self) -> bool:
        return self.paid_on == "success" or (self.paid_on is None and self.weight < 0.0)


class Composition(Options):
    """How the terms of a reward are put together."""

    terms: Annotated[dict[Annotated[str, Field(pattern=_NAME)], Term], Field(min_length=1)]
    success: Condition | None = None
    """Condition under which a rollout counts as a success; None: the first term whose value is `outcome` reaches 1."""
    bounds: tuple[Number, Number] | None = None
    """Smallest and largest reward. A reward outside is moved to the nearer bound."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bounds is not None and self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"bounds must be the smallest and the largest reward, got {list(self.bounds)}")
        names = [name for name, _, depth in named_terms(self) if depth <= _MOST_NESTED]
        if len(names) < sum(1 for _ in named_terms(self)):
            raise ValueError(f"terms may be nested at most {_MOST_NESTED} levels deep")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two terms are called {twice[0]}: give each a name of its own")
        return self

    def conditions(self, term: Term) -> tuple[Condition, ...]:
        """Conditions under which a term is paid; ValueError if it needs a success that nothing defines."""
        own = () if term.only_if is None else (term.only_if,)
        return (*own, self.success_condition()) if term.is_paid_on_success else own

    def success_condition(self) -> Condition:
        """Condition under which a rollout counts as a success.

        Raises:
            ValueError: If `success` is None and no term has the value `outcome`.
        """
        if self.success is not None:
            return self.success
        for name, term, _ in named_terms(self):
            if term.value == "outcome":
                return Condition(term=name, at_least=1.0)
        raise ValueError(
            "a term is paid only on success, but no term has the value outcome: set success to {term: ..., at_least: "
            "...}, or the term's paid_on to all"
        )


def named_terms(composition: Composition) -> Iterator[tuple[str, Term, int]]:
    """(name, term, depth) of every term, with depths from 1; the terms within a term follow right after it."""

    def walk(terms: Mapping[str, Term], depth: int) -> Iterator[tuple[str, Term, int]]:
        for name, term in terms.items():
            yield name, term, depth
            yield from walk(term.terms or {}, depth + 1)

    return walk(composition.terms, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TermValue:
    """Value that a source, such as a verifier, gives one rollout, before scale and bounds."""

    value: float | None
    """None if the source could not decide."""
    reason: str = ""
    """Reason of the value, for people to read; a short code if the value is None."""
    detail: str = ""
    """Details of the reason, such as why the source could not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidTerm:
    """One term of one rollout's reward."""

    name: str
    depth: int
    """1 for a term of the reward itself, 2 for a term within such a term, and so on."""
    value: float | None
    """Value after scale and bounds; None if it is not known and was not needed."""
    paid: float
    """Amount that the term adds to the term around it, or to the reward."""
    share: float
    """|paid| divided by the sum of |paid| over this term and the terms beside it; 0 if that sum is 0."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedReward:
    """Reward of one rollout, and where it comes from."""

    total: float | None
    """None if a term that is needed is undecided."""
    terms: tuple[PaidTerm, ...]
    """[num_terms] all terms; the terms within a term follow right after it."""
    reason: str
    """`composed`, or the reason why the reward is undecided."""
    detail: str = ""


class _UndecidedTermError(Exception):
    """A term that is needed has no value."""

    def __init__(self, name: str, value: TermValue) -> None:
        self.name, self.value = name, value


def compose(composition: Composition, values: Mapping[str, TermValue], max_turns: int) -> ComposedReward:
    """The reward of one rollout.

    A term that is not paid because its condition is not met needs no value. Any other term without a value makes the
    whole reward undecided: a missing value never counts as 0.

    Args:
        composition: How terms are put together; `check_conditions` has accepted it.
        values: {name of a term with a source of its own: the value from that source}.
        max_turns: Largest number of turns, for `scale: max_turns`.
    """
    computed = _Computed(composition, values, max_turns)
    try:
        paid = tuple(computed.paid(composition.terms, 1))
    except _UndecidedTermError as error:
        detail = f"term {error.name}: {error.value.detail or error.value.reason}"
        return ComposedReward(total=None, terms=(), reason=error.value.reason, detail=detail)
    total = math.fsum(each.paid for each in paid if each.depth == 1)
    held = total if composition.bounds is None else held_in(total, composition.bounds)
    detail = "" if held == total else f"the sum of {total:g} is limited to {list(composition.bounds or ())}"
    return ComposedReward(total=held, terms=paid, reason="composed", detail=detail)


class _Computed:
    """Values of the terms of one rollout, each computed once."""

    def __init__(self, composition: Composition, values: Mapping[str, TermValue], max_turns: int) -> None:
        self._composition, self._given, self._max_turns = composition, values, max_turns
        self._terms = {name: term for name, term, _ in named_terms(composition)}
        self._known: dict[str, TermValue] = {}

    def paid(self, terms: Mapping[str, Term], depth: int) -> Iterator[PaidTerm]:
        """Paid terms that stand beside each other, each followed by the terms within it."""
        amounts = {name: self._amount(name, term) for name, term in terms.items()}
        whole = math.fsum(abs(amount) for amount, _ in amounts.values())
        for name, term in terms.items():
            amount, why = amounts[name]
            value = self.value(name)
            share = abs(amount) / whole if whole else 0.0
            yield PaidTerm(name=name, depth=depth, value=value.value, paid=amount, share=share, why=why)
            if term.terms is not None and not why.startswith("not paid"):
                yield from self.paid(term.terms, depth + 1)

    def _amount(self, name: str, term: Term) -> tuple[float, str]:
        """Amount that a term adds, and the explanation of it; a condition that is not met leaves nothing to decide."""
        conditions = self._composition.conditions(term)
        for condition in conditions:
            reached = self.value(condition.term).value
            if reached is not None and reached < condition.at_least:
                return 0.0, f"not paid: {condition.term} is {reached:g}, below {condition.at_least:g}"
        for condition in conditions:
            self._needed(condition.term)
        value = self._needed(name)
        reason = self.value(name).reason
        return term.weight * value + term.offset, f"{_formula(term, value)}{f' ({reason})' if reason else ''}"

    def _needed(self, name: str) -> float:
        found = self.value(name)
        if found.value is None:
            raise _UndecidedTermError(name, found)
        return found.value

    def value(self, name: str) -> TermValue:
        """Value of a term after scale and bounds."""
        if name not in self._known:
            self._known[name] = self._computed(self._terms[name], self._given.get(name))
        return self._known[name]

    def _computed(self, term: Term, given: TermValue | None) -> TermValue:
        if term.terms is not None:
            try:
                given = TermValue(value=math.fsum(self._amount(name, each)[0] for name, each in term.terms.items()))
            except _UndecidedTermError as error:
                return error.value
        if given is None or given.value is None:
            return given or TermValue(value=None, reason="no_value", detail="the rollout has no such value")
        scaled = scaled_value(term, given.value, self._max_turns)
        return TermValue(value=scaled, reason=given.reason)


def scaled_value(term: Term, value: float, max_turns: int) -> float:
    """A value after scale, inversion and bounds."""
    scaled = value / (max_turns if term.scale == "max_turns" else term.scale)
    turned = 1.0 - scaled if term.inverted else scaled
    return turned if term.bounds is None else held_in(turned, term.bounds)


def held_in(value: float, bounds: tuple[float, float]) -> float:
    """The value, or the nearer bound if the value lies outside the bounds."""
    return min(max(value, bounds[0]), bounds[1])


def _formula(term: Term, value: float) -> str:
    offset = f" {term.offset:+g}" if term.offset else ""
    return f"{term.weight:g} x {value:g}{offset}"
