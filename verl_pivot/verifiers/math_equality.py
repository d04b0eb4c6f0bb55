"""Two answers in LaTeX -> a mismatch that is found without calculating, or the pairs of formulas that must be equal."""

import re
from typing import NamedTuple

from verl_pivot.verifiers.math_texts import MathAnswer

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class FormulaChoice(NamedTuple):
    """Pairs of formulas, at least one of which must be equal."""

    pairs: tuple[tuple[str, str], ...]
    """((the expert's formula, the policy's formula), ...)"""


class Mismatch(NamedTuple):
    """Difference between two answers that is found before anything is calculated."""

    what: str


def needed_equalities(answer: MathAnswer, expert: MathAnswer) -> list[FormulaChoice] | Mismatch:
    """Equalities that must all hold for a right answer, each with one or more alternatives; empty if it is right.

    Args:
        answer: The policy's answer.
        expert: The expert's answer.
    """
    if answer == expert:
        return [FormulaChoice(((expert.formula, answer.formula),))]
    if expert.letters or answer.letters:
        return [] if answer.has_letters_of(expert) else Mismatch("other letters")
    if (what := _difference(answer, expert)) is not None:
        return Mismatch(what)
    sides = _sides(answer, expert)
    return Mismatch("other sides of an equation") if sides is None else [_choice(*each) for each in sides]


def _difference(answer: MathAnswer, expert: MathAnswer) -> str | None:
    swapped = {each.swapcase() for each in expert.variables - answer.variables}
    found = {
        "another unit": bool(answer.unit and expert.unit) and answer.unit != expert.unit,
        "words that are no single unit": not expert.unit and not answer.has_one_unit,
        "another base": answer.bases != expert.bases,
        "other brackets": _has_other_brackets(answer, expert),
        "an expression that is not evaluated": not answer.unevaluated <= expert.unevaluated,
        "letters in another case": not swapped.isdisjoint(answer.variables),
    }
    return next((what for what, is_found in found.items() if is_found), None)


def _has_other_brackets(answer: MathAnswer, expert: MathAnswer) -> bool:
    """Whether brackets differ; those in unions, differences and the like belong to sets that are calculated later."""
    if answer.has_set_operation or expert.has_set_operation:
        return False
    return (answer.brackets or "{}") != (expert.brackets or "{}")


def _sides(answer: MathAnswer, expert: MathAnswer) -> list[tuple[MathAnswer, MathAnswer]] | None:
    """(side of the answer, side of the expert's answer) that must be equal; None if they cannot be compared.

    Empty if one is the other with its sides exchanged.
    """
    if answer.is_list_of_equations != expert.is_list_of_equations:
        found, right = answer.solutions, expert.solutions
        return None if found is None or right is None else [(found, right)]
    given, wanted = answer.sides, expert.sides
    if given == wanted[::-1]:
        return []
    if len(wanted) > 1 and wanted[0].is_name:
        if len(given) > 1 and given[0].is_name:
            if given[0].formula != wanted[0].formula:
                return None
            given = given[1:]
        elif len(given) > 1:
            return [(answer, expert)] if expert.variables <= answer.variables and len(wanted) == len(given) else None
        return [(each, wanted[-1]) for each in given]
    if len(wanted) > 1:
        is_equation = len(given) == len(wanted) == 2 and expert.variables <= answer.variables
        return [(answer, expert)] if is_equation else None
    values = given[1:] if len(given) > 1 and given[0].is_name else given
    return [(each, expert) for each in values]


def _choice(answer: MathAnswer, expert: MathAnswer) -> FormulaChoice:
    """Alternatives for a percentage: the fraction that it stands for, or its number as written.

    The number as written does not count if the expert's answer has no percent sign and may itself be a share.
    """
    as_written = (expert.formula, answer.formula)
    if answer.is_percent == expert.is_percent:
        return FormulaChoice((as_written,))
    if expert.is_percent:
        return FormulaChoice((as_written, (expert.as_fraction().formula, answer.formula)))
    as_share = (expert.formula, answer.as_fraction().formula)
    is_share = _NUMBER.fullmatch(expert.formula) is None or abs(float(expert.formula)) <= 1.0
    return FormulaChoice((as_share,) if is_share else (as_share, as_written))
