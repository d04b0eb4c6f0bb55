"""`assert f(2) == [4]` -> the expression that the sandbox evaluates, `f(2)`, and the check of its value outside.

What a test expects never enters the sandbox: a program that takes over its interpreter can only guess it.
"""

import ast
import builtins
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

_OUTSIDE: Mapping[str, Any] = {"abs": abs, "isclose": math.isclose, "round": round, "set": set, "frozenset": frozenset}
"""Functions that are evaluated outside, since their arguments may hold what the test expects."""
_CONVERSIONS = frozenset({"list", "tuple", "set", "frozenset", "dict", "sorted", "len", "sum", "str", "int", "float"})
"""Functions that are evaluated in the sandbox with the program's call inside them, whose value may not be plain."""
_PROGRAM_NODES = (ast.Call, ast.Name, ast.Attribute)
"""Nodes that refer to the program."""
_OUTSIDE_NODES = (
    *(ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context, ast.Add, ast.Sub, ast.Div),
)
"""Nodes that are evaluated outside. Products are not among them: one with the program's number can fill memory."""
_FAILURES = (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError)
_NUMBERS = {"nan": math.nan, "inf": math.inf}
_NAME_PREFIX = "value_"
"""Prefix of the names that stand in a check for the values of its expressions: value_0, value_1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertCheck:
    """One assert, split in two."""

    expressions: tuple[str, ...]
    """Expressions to evaluate in the sandbox, after the program."""
    code: CodeType
    """The assert with a name in place of each expression."""

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether the assert is true of plain values, one for each expression."""
        names = {f"{_NAME_PREFIX}{index}": value for index, value in enumerate(values)}
        try:
            return bool(eval(self.code, {"__builtins__": {}, **_OUTSIDE, **names}))
        except _FAILURES:
            return False


@lru_cache(65_536)
def parse_assert(text: str) -> AssertCheck:
    """Split one assert.

    Raises:
        ValueError: If the assert cannot be checked from outside the program's interpreter.
    """
    try:
        (statement,) = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"{text[:200]!r} is not one assert") from error
    splitter = _Splitter(text)
    test = statement.test if isinstance(statement, ast.Assert) else ast.Constant(value=None)
    test = ast.fix_missing_locations(splitter.visit(test))
    if not splitter.expressions:
        raise ValueError(f"{text[:200]!r} is no assert that evaluates anything of the program")
    return AssertCheck(expressions=tuple(splitter.expressions), code=compile(ast.Expression(test), "assert", "eval"))


class _Splitter(ast.NodeTransformer):
    """Puts names in place of the program's expressions, and refuses what is not harmless to evaluate outside."""

    def __init__(self, text: str) -> None:
        self.expressions: list[str] = []
        self._text = text

    def visit(self, node: ast.AST) -> Any:
        name = _name_of(node.func) if isinstance(node, ast.Call) else ""
        is_conversion = isinstance(node, ast.Call) and _is_conversion(node)
        if isinstance(node, ast.Call) and name in _OUTSIDE and not is_conversion:
            arguments = [self.visit(each) for each in node.args]
            keywords = [ast.keyword(arg=each.arg, value=self.visit(each.value)) for each in node.keywords]
            return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=arguments, keywords=keywords)
        # Builtins such as all(...) or isinstance(...) belong to the test: in the sandbox, the program could forge their
        # result.
        if isinstance(node, _PROGRAM_NODES) and (is_conversion or name not in dir(builtins)):
            self.expressions.append(ast.unparse(node))
            return ast.Name(id=f"{_NAME_PREFIX}{len(self.expressions) - 1}", ctx=ast.Load())
        if isinstance(node, _OUTSIDE_NODES):
            return self.generic_visit(node)
        what = f"call of {name}" if name else type(node).__name__
        raise ValueError(f"{self._text[:200]!r} has a {what} that cannot be checked outside; write call == value")


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "math":
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_conversion(node: ast.Call) -> bool:
    """Whether the call converts one expression of the program's, as `sorted(f(1))` does."""
    is_one = len(node.args) == 1 and not node.keywords
    return is_one and _name_of(node.func) in _CONVERSIONS and isinstance(node.args[0], _PROGRAM_NODES)


def parse_plain_value(text: str) -> Any:
    """The value of a repr.

    Raises:
        ValueError: If the repr stands for anything but numbers, texts, None, and containers of them.
    """
    try:
        return ast.literal_eval(_NumberNames().visit(ast.parse(text, mode="eval")))
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:100]!r} is no plain value") from error


class _NumberNames(ast.NodeTransformer):
    """Replaces the names nan and inf, which have no literals, by their numbers."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(_NUMBERS[node.id]), node) if node.id in _NUMBERS else node
