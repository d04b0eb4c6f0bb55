"""Composition -> the least and the largest reward that it can give, or a ValueError if it contradicts itself."""

import itertools
import math
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple

from verl_pivot.rewards.compose import Composition, Term, held_in, named_terms, scaled_value

_MOST_CASES: Final = 100_000
_ROUNDING: Final = 1e-9


class ValueRange(NamedTuple):
    """Least and largest number that a value can be; infinite where the value has no bound."""

    least: float
    largest: float


def check_conditions(composition: Composition) -> None:
    """Refuse conditions on terms that do not exist, and terms that depend on each other in a circle.

    Raises:
        ValueError: If there are such terms; the message names them.
    """
    terms = {name: term for name, term, _ in named_terms(composition)}
    needs: dict[str, set[str]] = {}
    for name, term in terms.items():
        asked = [condition.term for condition in composition.conditions(term)]
        if unknown := [each for each in asked if each not in terms]:
            raise ValueError(f"terms.{name} depends on the unknown term {unknown[0]}; known terms: {sorted(terms)}")
        needs[name] = {*asked, *(term.terms or {})}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise ValueError(f"terms depend on each other in a circle ({circle}): remove one only_if") from error


def worst_and_best(composition: Composition, ranges: Mapping[str, ValueRange], max_turns: int) -> ValueRange:
    """Least and largest reward, over all cases of conditions that are met or not met.

    Args:
        composition: Terms whose conditions `check_conditions` has accepted.
        ranges: {name of a term with a source of its own: range of its value, before scale and bounds}.
        max_turns: Largest number of turns.

    Raises:
        ValueError: If a condition is always or never met, a bound is never reached, or there are too many cases.
    """
    terms = {name: term for name, term, _ in named_terms(composition)}
    own = {name: _own_range(name, term, ranges[name], max_turns) for name, term in terms.items() if term.terms is None}
    found = _over_cases(composition, own, max_turns)
    _check_thresholds(_thresholds(composition, terms), own)
    return found if composition.bounds is None else _held(composition.bounds, found)


def narrower_sums(composition: Composition, ranges: Mapping[str, ValueRange], max_turns: int) -> ValueRange:
    """Least and largest reward if values lie in narrower ranges, which no condition or bound need be within.

    Arguments are those of `worst_and_best`, which has accepted the composition.
    """
    own = {
        name: ValueRange(*sorted(scaled_value(term, end, max_turns) for end in ranges[name]))
        for name, term, _ in named_terms(composition)
        if term.terms is None
    }
    found, bounds = _over_cases(composition, own, max_turns), composition.bounds
    return found if bounds is None else ValueRange(held_in(found.least, bounds), held_in(found.largest, bounds))


def _over_cases(composition: Composition, own: Mapping[str, ValueRange], max_turns: int) -> ValueRange:
    """Range of the sum over all cases of conditions that are met or not met.

    Args:
        composition: Terms with their conditions.
        own: {name of a term with a source of its own: range of its value, after scale and bounds}.
        max_turns: Largest number of turns.
    """
    terms = {name: term for name, term, _ in named_terms(composition)}
    marks = _thresholds(composition, terms)
    sources = [name for name in marks if terms[name].terms is None]
    pieces = [_pieces(own[name], sorted(marks[name])) for name in sources]
    if math.prod(map(len, pieces)) > _MOST_CASES:
        raise ValueError(
            f"conditions on {len(sources)} terms are too many to compute the range of the reward: remove some"
        )
    sums = [
        _sum_in_case(composition, {**own, **dict(zip(sources, case, strict=True))}, max_turns)
        for case in itertools.product(*pieces)
    ]
    return ValueRange(min(each.least for each in sums), max(each.largest for each in sums))


def _held(bounds: tuple[float, float], found: ValueRange) -> ValueRange:
    """Range of the reward within the bounds, both of which the sum must be able to reach."""
    for name, bound, is_reached in (
        ("least", bounds[0], found.least <= bounds[0] + _ROUNDING),
        ("largest", bounds[1], found.largest >= bounds[1] - _ROUNDING),
    ):
        if not is_reached:
            raise ValueError(
                f"bounds: the {name} reward of {bound:g} is never reached, since the weights allow {found.least:g} to "
                f"{found.largest:g}: change the weights, or the bounds"
            )
    return ValueRange(held_in(found.least, bounds), held_in(found.largest, bounds))


def _own_range(name: str, term: Term, given: ValueRange, max_turns: int) -> ValueRange:
    """Range of a term's value after scale and bounds."""
    unbounded = term.model_copy(update={"bounds": None})
    ends = sorted(scaled_value(unbounded, end, max_turns) for end in given)
    if term.bounds is not None and (ends[0] >= term.bounds[1] or ends[1] <= term.bounds[0]):
        raise ValueError(
            f"terms.{name}.bounds: the value lies between {ends[0]:g} and {ends[1]:g}, so that with the bounds "
            f"{list(term.bounds)} it would always be the same: change the bounds, or the scale"
        )
    return ValueRange(*(end if term.bounds is None else held_in(end, term.bounds) for end in ends))


def _thresholds(composition: Composition, terms: Mapping[str, Term]) -> dict[str, set[float]]:
    """{term: values at which a condition on it is met}."""
    marks: dict[str, set[float]] = {}
    for term in terms.values():
        for condition in composition.conditions(term):
            marks.setdefault(condition.term, set()).add(condition.at_least)
    return marks


def _check_thresholds(marks: Mapping[str, set[float]], own: Mapping[str, ValueRange]) -> None:
    for name, thresholds in marks.items():
        if name not in own:
            continue
        for at_least in thresholds:
            if at_least > own[name].largest or at_least <= own[name].least:
                how = "never" if at_least > own[name].largest else "always"
                raise ValueError(
                    f"a condition is {how} met: {name} lies between {own[name].least:g} and {own[name].largest:g}, and "
                    f"must be at least {at_least:g}; change at_least, or remove the condition"
                )


def _pieces(whole: ValueRange, thresholds: list[float]) -> list[ValueRange]:
    """A range cut at thresholds; a threshold itself belongs to the piece above it."""
    inside = [each for each in thresholds if whole.least < each <= whole.largest]
    starts, ends = [whole.least, *inside], [*(math.nextafter(each, -math.inf) for each in inside), whole.largest]
    return [ValueRange(start, end) for start, end in zip(starts, ends, strict=True)]


def _sum_in_case(composition: Composition, known: dict[str, ValueRange], max_turns: int) -> ValueRange:
    """Range of the sum if the values lie in these ranges, none of which a threshold divides."""

    def value_of(name: str, term: Term) -> ValueRange:
        if term.terms is None:
            return known[name]
        parts = list(amounts(term.terms))
        whole = (math.fsum(part.least for part in parts), math.fsum(part.largest for part in parts))
        return ValueRange(*sorted(scaled_value(term, end, max_turns) for end in whole))

    def amounts(terms: Mapping[str, Term]) -> Iterator[ValueRange]:
        for name, term in terms.items():
            yield amount(name, term)

    def amount(name: str, term: Term) -> ValueRange:
        is_sure = True
        for condition in composition.conditions(term):
            reached = value_of(condition.term, by_name[condition.term])
            if reached.largest < condition.at_least:
                return ValueRange(0.0, 0.0)
            is_sure = is_sure and reached.least >= condition.at_least
        ends = sorted(term.weight * end + term.offset for end in value_of(name, term))
        return ValueRange(*ends) if is_sure else ValueRange(min(ends[0], 0.0), max(ends[1], 0.0))

    by_name = {name: term for name, term, _ in named_terms(composition)}
    parts = list(amounts(composition.terms))
    return ValueRange(math.fsum(part.least for part in parts), math.fsum(part.largest for part in parts))
