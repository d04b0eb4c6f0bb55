"""Seed -> pairs of an expert's program and a patch of it; execution of the tests decides whether they are the same."""

import ast
import random
from collections.abc import Iterator
from typing import NamedTuple

FUNCTIONS = {
    "def clamp(x, low, high):\n    if x < low:\n        return low\n    if x > high:\n"
    "        return high\n    return x\n": (
        "assert clamp(5, 1, 9) == 5",
        "assert clamp(-3, 1, 9) == 1",
        "assert clamp(12, 1, 9) == 9",
        "assert clamp(0, 0, 0) == 0",
    ),
    "def rise(numbers):\n    best = 0\n    for a, b in zip(numbers, numbers[1:]):\n        if b - a > best:\n"
    "            best = b - a\n    return best\n": (
        "assert rise([1, 4, 2]) == 3",
        "assert rise([5, 4, 3]) == 0",
        "assert rise([]) == 0",
        "assert rise([0, 1, 3]) == 2",
    ),
    "def leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n": (
        "assert leap(2024) == True",
        "assert leap(1900) == False",
        "assert leap(2000) == True",
        "assert leap(2023) == False",
    ),
    "def digits(number):\n    total = 0\n    while number > 0:\n        total += number % 10\n        number //= 10\n"
    "    return total\n": (
        "assert digits(0) == 0",
        "assert digits(7) == 7",
        "assert digits(190) == 10",
        "assert digits(1001) == 2",
    ),
}
"""{program of the expert: its tests}."""
_OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}


class PatchPair(NamedTuple):
    """Two programs, which count as the same if they pass the same tests."""

    expert: str
    patch: str
    tests: tuple[str, ...]


def patch_pairs(seed: int) -> list[PatchPair]:
    """All pairs of an expert's program and one of its patches, shuffled by the seed."""
    pairs = [
        PatchPair(expert, patch, tests)
        for expert, tests in FUNCTIONS.items()
        for patch in dict.fromkeys([*_mutants(expert), *_rewritings(expert)])
        if patch != expert
    ]
    random.Random(seed).shuffle(pairs)
    return pairs


def _mutants(program: str) -> Iterator[str]:
    """The program with one operator or one number changed; a few of these mutants still behave the same."""
    for index, node in enumerate(ast.walk(ast.parse(program))):
        for name, value in ast.iter_fields(node):
            kinds = _OPERATORS.get(type(value), ())
            yield from (_changed(program, index, name, kind()) for kind in kinds)
            if isinstance(value, list) and value and type(value[0]) in _OPERATORS:
                yield from (_changed(program, index, name, [kind()]) for kind in _OPERATORS[type(value[0])])
            if isinstance(value, int) and not isinstance(value, bool) and isinstance(node, ast.Constant):
                yield _changed(program, index, name, value + 1)


def _changed(program: str, index: int, name: str, value: object) -> str:
    tree = ast.parse(program)
    setattr(list(ast.walk(tree))[index], name, value)
    return ast.unparse(tree) + "\n"


def _rewritings(program: str) -> Iterator[str]:
    """The program rewritten without another meaning: a renamed variable, a comment, a `pass`, a reversed comparison."""
    tree = ast.parse(program)
    arguments = {each.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for each in node.args}
    names = arguments | {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for name in sorted(names):
        yield _renamed(program, name)
    head, _, body = program.partition("\n")
    yield f"{head}\n    # as the tests ask\n{body}"
    yield f"{head}\n    pass\n{body}"
    for index, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in (ast.Lt, ast.Gt):
            turned = ast.Compare(
                node.comparators[0], [ast.Gt() if isinstance(node.ops[0], ast.Lt) else ast.Lt()], [node.left]
            )
            yield _replaced(program, index, turned)


def _renamed(program: str, name: str) -> str:
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = f"{name}_"
        elif isinstance(node, ast.arg) and node.arg == name:
            node.arg = f"{name}_"
    return ast.unparse(tree) + "\n"


def _replaced(program: str, index: int, turned: ast.Compare) -> str:
    tree = ast.parse(program)
    node = list(ast.walk(tree))[index]
    for name in ast.Compare._fields:
        setattr(node, name, getattr(turned, name))
    return ast.unparse(tree) + "\n"
