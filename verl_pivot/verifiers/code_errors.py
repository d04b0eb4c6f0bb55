"""`assert raises(f(-1), ValueError)` -> the call that the sandbox evaluates, and the check of the error it raises."""

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from verl_pivot.verifiers.code_values import Evaluated
from verl_pivot.verifiers.constraints_patterns import compiled_pattern, contains_match
from verl_pivot.verifiers.verdicts import Reason

_VAGUE = frozenset({"BaseException", "Exception", "NameError", "SyntaxError"})
"""Kinds of errors that an empty program raises."""
_BUILTINS = "builtins."


class Raise(NamedTuple):
    """Error that a test expects of a call."""

    call: ast.Call
    kinds: tuple[str, ...]
    """Names of the kinds of error, any of which is right."""
    pattern: str | None
    """Regular expression that the error's text must match somewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseCheck:
    """One expected error, split into a call for the sandbox and a check of the error outside it."""

    setup: str
    """Statements that the sandbox runs before the expressions."""
    expressions: tuple[str, ...]
    """The expression to evaluate in the sandbox, after the program."""
    kinds: tuple[str, ...]
    pattern: str | None

    def problem(self, evaluated: Evaluated) -> Reason | None:
        """Reason why the evaluated expression is wrong; None if it raised the expected error."""
        if evaluated.problem is None:
            return Reason.WRONG_OUTPUT
        if not any(_is_kind(kind, evaluated.error_kinds) for kind in self.kinds):
            return evaluated.problem
        text = evaluated.detail.partition(": ")[2]
        return None if self.pattern is None or contains_match(self.pattern, text) else Reason.WRONG_OUTPUT


def read_raise(test: ast.Call) -> Raise:
    """Parts of `raises(call, kind, match=pattern)`.

    Raises:
        ValueError: If `test` has another form, or an empty program would raise such an error.
    """
    match test:
        case ast.Call(args=[ast.Call() as call, kind], keywords=[]):
            pattern = None
        case ast.Call(
            args=[ast.Call() as call, kind], keywords=[ast.keyword(arg="match", value=ast.Constant(value=str(pattern)))]
        ):
            compiled_pattern(pattern)
        case _:
            raise ValueError("is not written as raises(call, kind, match=pattern)")
    kinds = tuple(_kind_name(each) for each in (kind.elts if isinstance(kind, ast.Tuple) else [kind]))
    if not kinds or _VAGUE & set(kinds):
        raise ValueError("expects an error class that an empty program also raises; name a more specific class")
    return Raise(call, kinds, pattern)


def _kind_name(kind: ast.expr) -> str:
    name = kind.attr if isinstance(kind, ast.Attribute) else kind.id if isinstance(kind, ast.Name) else ""
    if not name:
        raise ValueError(f"needs the name of an error class, got {ast.unparse(kind)[:80]!r}")
    return name


def _is_kind(name: str, error_kinds: Sequence[str]) -> bool:
    """Whether an error is of a kind; an error of several unrelated built-in kinds at once is of none of them."""
    expected = _builtin_error(name)
    if expected is None:
        return any(each.rpartition(".")[2] == name for each in error_kinds if not each.startswith(_BUILTINS))
    named = [each.removeprefix(_BUILTINS) for each in error_kinds if each.startswith(_BUILTINS)]
    found = [error for error in map(_builtin_error, named) if error is not None]
    is_known = len(found) == len(named) and expected in found
    return is_known and all(issubclass(each, expected) or issubclass(expected, each) for each in found)


def _builtin_error(name: str) -> type[BaseException] | None:
    """Built-in exception class of this name; None if there is none."""
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
