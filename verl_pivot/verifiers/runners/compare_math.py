"""Runs in the sandbox: compares pairs of formulas in a child process; a pair that takes too much ends only the child.

Formulas are read only as LaTeX, by a grammar, and nothing in them is executed.
plan.json: [{"expert", "answer", "digits", "seconds"}], with the CPU seconds that a pair may take.
verdicts.json: [{"has_expert", "has_answer", "same"} | {"ended"}], in the same order. "ended" is "time_limit",
"runtime_error" where the formulas are too large for memory or crash the process, or "error" where this program fails.
"""

import json
import os
import resource
import signal
from dataclasses import replace
from typing import Any, NamedTuple

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Eq, Expr, FiniteSet, Float, Interval, MatrixBase, Rational, Tuple, default_sort_key
from sympy.core.cache import clear_cache

WITHOUT_UNITS = replace(LatexExtractionConfig().normalization_config, units=False)
"""Units are compared outside the sandbox; math-verify would take the d of 5d for a unit."""
MEMORY_BYTES = 768 * 1024**2
TOO_LARGE_CODE = 3
"""Exit code of a child process if a formula takes too much memory or is nested too deeply."""


def read(text: str) -> list[Any]:
    config = [LatexExtractionConfig(boxed_match_priority=-1, normalization_config=WITHOUT_UNITS)]
    formulas: list[Any] = parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None)
    return formulas


def is_near(expert: Any, answer: Any, digits: int) -> bool:
    """Whether two formulas that are equal for math-verify, which rounds decimals, are equal in significant digits, too.

    Members of sets, tuples and matrices are compared one by one; in formulas, a number is put in for each letter. A set
    of one member is that member, and an equation beside a formula is its right side, as for math-verify. A pair or open
    interval is not the set of its two ends, which it is for math-verify.
    """
    if isinstance(expert, Eq) != isinstance(answer, Eq):
        expert, answer = (each.rhs if isinstance(each, Eq) else each for each in (expert, answer))
    expert, answer = _without_braces(expert), _without_braces(answer)
    if _has_members(expert) and _has_members(answer):
        if isinstance(expert, FiniteSet) != isinstance(answer, FiniteSet):
            return False
        members = [_members(each) for each in (expert, answer)]
        if len(members[0]) != len(members[1]):
            return True
        return all(is_near(one, other, digits) for one, other in zip(*members, strict=True))
    if not (isinstance(expert, Expr) and isinstance(answer, Expr)):
        return True
    letters = sorted(expert.free_symbols | answer.free_symbols, key=str)
    at = {letter: Rational(137 + 74 * index, 100) for index, letter in enumerate(letters)}
    one, other = (each.subs(at).doit() for each in (expert, answer))
    return not (one.is_number and other.is_number) or _is_near_number(one, other, digits)


def _without_braces(formula: Any) -> Any:
    """The only member of a set that has one; any other formula is unchanged."""
    return formula.args[0] if isinstance(formula, FiniteSet) and len(formula.args) == 1 else formula


def _has_members(formula: Any) -> bool:
    return isinstance(formula, FiniteSet | Tuple | Interval | MatrixBase)


def _members(formulas: Any) -> list[Any]:
    """Members of a set in the order of their size, or of a tuple, interval or matrix in their own order."""
    if isinstance(formulas, FiniteSet):
        return sorted(formulas.args, key=lambda each: default_sort_key(each.evalf() if each.is_number else each))
    if isinstance(formulas, Interval):
        return [formulas.start, formulas.end]
    return list(formulas)


def are_near_decimals(expert: Any, answer: Any, digits: int) -> bool:
    """Whether two numbers, at least one of which is a decimal, are equal in significant digits.

    So are two sets, pairs or intervals of the same kind if each of their members is the other's or is near it.
    math-verify rounds to decimal places instead, and would want more digits of large numbers than of small ones.
    """
    expert, answer = _without_braces(expert), _without_braces(answer)
    if _brackets(expert) != _brackets(answer):
        return False
    if _brackets(expert):
        members = [_members(each) for each in (expert, answer)]
        return len(members[0]) == len(members[1]) and all(
            one == other or are_near_decimals(one, other, digits) for one, other in zip(*members, strict=True)
        )
    formulas = (expert, answer)
    if not all(isinstance(each, Expr) and each.is_number for each in formulas):
        return False
    if not any(each.atoms(Float) for each in formulas):
        return False
    one, other = (each.doit() for each in formulas)
    return bool(one.is_finite and other.is_finite) and _is_near_number(one, other, digits)


def _brackets(formula: Any) -> str:
    """Brackets around the members of a list of formulas; "" for a formula that is no list."""
    if isinstance(formula, Interval):
        return ("(" if formula.left_open else "[") + (")" if formula.right_open else "]")
    return "()" if isinstance(formula, Tuple) else "{}" if isinstance(formula, FiniteSet) else ""


def _is_near_number(one: Any, other: Any, digits: int) -> bool:
    values = [each.evalf(digits + 15) for each in (one, other)]
    if values[0] == values[1]:
        return True
    difference, *sizes = (abs(each).evalf(digits + 15) for each in (values[0] - values[1], *values))
    limit = 10.0**-digits * max(sizes)
    if (one.is_Integer or other.is_Integer) and all(map(_is_whole, values)):
        limit = min(limit, 0.5)
    if difference <= limit:
        return True
    is_exact = not (one.atoms(Float) or other.atoms(Float))
    return is_exact and bool((one - other).equals(0))  # terms that cancel out may give nearly 0


def _is_whole(value: Any) -> bool:
    """Whether a decimal is a whole number; beside an exact whole number, 1234568.0 is meant as exactly."""
    return bool(value.is_real) and not value - int(value)


def compare(pair: dict[str, Any]) -> dict[str, bool]:
    expert, answer = read(pair["expert"]), read(pair["answer"])
    same = bool(expert) and bool(answer) and is_same(expert[0], answer[0], pair["digits"])
    return {"has_expert": bool(expert), "has_answer": bool(answer), "same": same}


def is_same(expert: Any, answer: Any, digits: int) -> bool:
    """Whether an answer has the value of the expert's formula, in significant digits where there are decimals."""
    if verify(expert, answer, float_rounding=digits, timeout_seconds=None):
        return bool(expert == answer) or is_near(expert, answer, digits)
    return are_near_decimals(expert, answer, digits)


class Ended(NamedTuple):
    """How a child process ended before it had compared all of its pairs."""

    num_compared: int
    signal: int | None
    exit_code: int


def compare_in_child(pairs: list[dict[str, Any]], verdicts: list[dict[str, Any]]) -> Ended:
    """Compare pairs in a child process, add their verdicts, and say how the child ended.

    One child compares many pairs, since a fork costs as much as several pairs. SymPy's caches, which the pairs would
    share, are emptied before each pair.
    """
    num_before = len(verdicts)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        for pair in pairs:
            clear_cache()
            signal.setitimer(signal.ITIMER_PROF, pair["seconds"])
            try:
                verdict = compare(pair)
            except (MemoryError, RecursionError):
                os._exit(TOO_LARGE_CODE)
            os.write(write_end, json.dumps(verdict).encode() + b"\n")
        os._exit(0)
    os.close(write_end)
    with open(read_end, encoding="utf-8") as lines:
        verdicts += map(json.loads, lines)
    _, status = os.waitpid(child, 0)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return Ended(len(verdicts) - num_before, ended_by, os.WEXITSTATUS(status))


def compare_all(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts on all pairs; a pair that crashes a process after other pairs is tried again, first in a new process."""
    verdicts: list[dict[str, Any]] = []
    while len(verdicts) < len(pairs):
        ended = compare_in_child(pairs[len(verdicts) :], verdicts)
        if ended.signal == signal.SIGKILL:  # sent by the system and not by a formula
            os.kill(os.getpid(), signal.SIGKILL)
        if ended.signal == signal.SIGPROF:
            verdicts.append({"ended": "time_limit"})
        elif len(verdicts) < len(pairs) and not ended.num_compared:
            is_large = ended.signal is not None or ended.exit_code == TOO_LARGE_CODE
            verdicts.append({"ended": "runtime_error" if is_large else "error"})
    return verdicts


def main() -> None:
    with open("plan.json", encoding="utf-8") as file:
        pairs = json.load(file)
    compare(
        {"expert": r"\frac{1}{2} + x", "answer": r"x + \frac{1}{2}", "digits": 6}
    )  # loads what child processes share
    with open("verdicts.json", "w", encoding="utf-8") as out:
        json.dump(compare_all(pairs), out)


main()
