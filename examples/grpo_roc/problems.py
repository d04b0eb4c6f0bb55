"""Word problems with an integer answer: a seed -> Problem, with code that solves it; code -> code that fails."""

import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_NUMBER = 199
"""Largest number in a problem, its code or its answer."""
Numbers = dict[str, int]
"""{name in a template: number}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One word problem, with right and wrong code for it.

    Example:
        Problem(family="power", text="What is 3 to the power of 4 modulo 7?", answer=4, code="print(3 ** 4 % 7)", ...)
    """

    family: str
    text: str
    answer: int
    code: str
    """Program that prints the answer."""
    slip: str
    """Program with a slip in its logic: it runs, but prints another number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Templates of problems that differ only in their numbers."""

    text: str
    right: str
    """Expression of the answer."""
    wrong: str
    """Expression with a slip in its logic."""
    draw: Callable[[random.Random], Numbers]
    imports: str = ""
    is_ambiguous: bool = False
    """Whether the text fits both expressions; then chance decides which one is right, so no policy is always right."""

    def code(self, expression: str, numbers: Numbers) -> str:
        return f"{self.imports}print({expression.format(**numbers)})"

    def value(self, expression: str, numbers: Numbers) -> int:
        """Value of one of this file's own expressions, which need no sandbox."""
        return int(eval(expression.format(**numbers), {"gcd": math.gcd, "lcm": math.lcm}))


def _ranges(**ranges: tuple[int, int]) -> Callable[[random.Random], Numbers]:
    """Function that draws each number independently and uniformly between its two limits, both included."""
    return lambda rng: {name: rng.randint(*limits) for name, limits in ranges.items()}


def _common_factor(rng: random.Random) -> Numbers:
    factor = rng.randint(2, 30)
    return {name: factor * rng.randint(2, MAX_NUMBER // factor) for name in "abc"}


def _interval(rng: random.Random) -> Numbers:
    """Numbers of an interval from a to b, where b is a multiple of m."""
    m = rng.randint(3, 30)
    a = rng.randint(2, 100)
    return {"m": m, "a": a, "b": m * rng.randint(a // m + 2, MAX_NUMBER // m)}


def _steps(rng: random.Random) -> Numbers:
    """Numbers of the multiples of a up to n, where n is a multiple of a."""
    a = rng.randint(3, 50)
    return {"a": a, "n": a * rng.randint(3, MAX_NUMBER // a), "m": rng.randint(11, MAX_NUMBER)}


FAMILIES: Mapping[str, _Family] = {
    "remainder": _Family(
        text="What is the remainder of {a} * {b} + {c} divided by {m}?",
        right="({a} * {b} + {c}) % {m}",
        wrong="{a} * {b} % {m} + {c}",
        draw=_ranges(a=(11, 199), b=(11, 199), c=(11, 149), m=(11, 149)),
    ),
    "power": _Family(
        text="What is {a} to the power of {b} modulo {m}?",
        right="{a} ** {b} % {m}",
        wrong="{a} ^ {b} % {m}",
        draw=_ranges(a=(2, 99), b=(3, 99), m=(11, 199)),
    ),
    "digits": _Family(
        text="What is the sum of the digits of {a} to the power of {b}?",
        right="sum(int(d) for d in str({a} ** {b}))",
        wrong="sum(int(d) for d in str({a} ^ {b}))",
        draw=_ranges(a=(2, 99), b=(3, 30)),
    ),
    "gcd": _Family(
        text="What is the greatest common divisor of {a}, {b} and {c}?",
        right="gcd({a}, {b}, {c})",
        wrong="gcd({a}, {b})",
        draw=_common_factor,
        imports="from math import gcd\n",
    ),
    "lcm": _Family(
        text="What is the least common multiple of {a}, {b} and {c}?",
        right="lcm({a}, {b}, {c})",
        wrong="lcm({a}, {b})",
        draw=_ranges(a=(2, 30), b=(2, 30), c=(2, 30)),
        imports="from math import lcm\n",
    ),
    "divisible": _Family(
        text="How many numbers between {a} and {b} are divisible by {m}?",
        right="sum(i % {m} == 0 for i in range({a}, {b} + 1))",
        wrong="sum(i % {m} == 0 for i in range({a}, {b}))",
        draw=_interval,
        is_ambiguous=True,
    ),
    "squares": _Family(
        text="What is the sum of the squares between {a} and {b} modulo {m}?",
        right="sum(i ** 2 for i in range({a}, {b} + 1)) % {m}",
        wrong="sum(i ** 2 for i in range({a}, {b})) % {m}",
        draw=_ranges(a=(2, 99), b=(101, 199), m=(11, 199)),
        is_ambiguous=True,
    ),
    "multiples": _Family(
        text="What is the sum of the multiples of {a} between 0 and {n} modulo {m}?",
        right="sum(range(0, {n} + 1, {a})) % {m}",
        wrong="sum(range(0, {n}, {a})) % {m}",
        draw=_steps,
        is_ambiguous=True,
    ),
}


def make_problem(seed: int) -> Problem:
    """The problem of a seed, which is always the same; the slip of an ambiguous problem is its other reading."""
    rng = random.Random(f"problem-{seed}")
    name = rng.choice(list(FAMILIES))
    family = FAMILIES[name]
    expressions = [family.right, family.wrong]
    if family.is_ambiguous:
        rng.shuffle(expressions)
    while True:
        numbers = family.draw(rng)
        right, wrong = (family.value(expression, numbers) for expression in expressions)
        if right != wrong and 0 <= right <= MAX_NUMBER and 0 <= wrong <= MAX_NUMBER:
            code, slip = (family.code(expression, numbers) for expression in expressions)
            return Problem(family=name, text=family.text.format(**numbers), answer=right, code=code, slip=slip)


def break_code(code: str, rng: random.Random) -> str:
    """The code, broken in one of the ways in WAYS_TO_BREAK."""
    possible = [name for name in WAYS_TO_BREAK if name != "import" or code.startswith("from")]
    return WAYS_TO_BREAK[rng.choice(possible)](code)


def _with_text(code: str) -> str:
    """The code with its first number given as text."""
    return re.sub(r"\d+", lambda number: f"'{number[0]}'", code, count=1)


WAYS_TO_BREAK: Mapping[str, Callable[[str], str]] = {
    "never_closed": lambda code: code.removesuffix(")"),
    "closed_twice": lambda code: f"{code})",
    "misspelt": lambda code: code.replace("print(", "pritn("),
    "text": _with_text,
    "import": lambda code: code.split("\n", 1)[-1],
}
"""Errors of syntax, name or type; "import" leaves out an import, and applies only to code that has one."""
