"""`assert f(2) == [4]` -> the expression that the sandbox evaluates, `f(2)`, and the check of its value outside.

Expected values never enter the sandbox: a program that takes over its interpreter can only guess them. An assert is
refused if it gives one of the program's functions a constant that may be the expected value. Statements may stand
before the assert; see code_setup.py.
"""

import ast
import builtins
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from verl_pivot.verifiers.code_errors import RaiseCheck, read_raise
from verl_pivot.verifiers.code_inputs import check_inputs, name_of, refused
from verl_pivot.verifiers.code_operations import FUNCTIONS, MODULES, NAMES, multiply, power, remainder
from verl_pivot.verifiers.code_setup import MADE, Setup, names_in, read_setup, subjects

_CALCULATIONS: Mapping[type[ast.operator], Any] = {ast.Mult: multiply, ast.Pow: power, ast.Mod: remainder}
_OUTSIDE_NODES = (
    *(ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context, ast.Add, ast.Sub, ast.Div, ast.FloorDiv),
    *(ast.BitAnd, ast.BitOr, ast.BitXor, ast.Subscript, ast.Slice),
)
"""Syntax nodes that are evaluated outside the sandbox."""
_FAILURES = (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError, AttributeError)
_NOT_THE_PROGRAMS = {*dir(builtins), *FUNCTIONS, *MODULES, MADE}
_VALUE, _OUTSIDE = "value_", "outside_"
"""Prefixes of names in a check: for values of its expressions, and for functions that run outside the sandbox."""
_PROBES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 0.5, "", "a", [], [0], (), {}, {0}, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertCheck:
    """One assert, split into expressions for the sandbox and a check of their values outside it."""

    setup: str = ""
    """Statements that the sandbox runs before the expressions."""
    expressions: tuple[str, ...]
    """Expressions to evaluate in the sandbox, after the program."""
    code: CodeType
    """The assert with a name in place of each expression."""
    functions: Mapping[str, Any]
    """{name in the code: function that it stands for}"""

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether the assert is true of plain values, one for each expression."""
        names = {f"{_VALUE}{index}": value for index, value in enumerate(values)}
        try:
            return bool(eval(self.code, {"__builtins__": {}, **self.functions, **names}))
        except _FAILURES:
            return False


@lru_cache(65_536)
def parse_assert(text: str, entry_point: str = "") -> AssertCheck | RaiseCheck:
    """Split one assert into expressions for the sandbox and a check of their values outside it.

    Args:
        text: The assert, after the statements that it needs. `assert raises(f(-1), ValueError)` holds if the call
            raises such an error.
        entry_point: Name of the function or class under test, if it is known: all arguments of its calls are inputs.

    Raises:
        ValueError: If the assert cannot be checked from outside the program's interpreter, or is true of every value.
    """
    try:
        *before, statement = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:200]!r} is not valid Python that ends with an assert") from error
    setup = _read_setup(before, statement, text)
    splitter = _Splitter(text, entry_point, setup)
    test = statement.test if isinstance(statement, ast.Assert) else ast.Constant(value=None)
    if isinstance(test, ast.Call) and name_of(test) == "raises" and entry_point != "raises":
        return _raise_check(test, text, splitter)
    if isinstance(test, ast.Tuple | ast.List | ast.Dict | ast.Set):
        raise refused(text, f"asserts a {type(test).__name__.lower()}, which is true whatever it holds")
    constants = _constants(test)
    for atom in _atoms(test):
        splitter.check_atom(atom)
    test = ast.fix_missing_locations(splitter.visit(test))
    if not splitter.expressions:
        raise ValueError(f"{text[:200]!r} is not an assert that uses a function or variable of the program")
    code = _compiled(test, text)
    check = AssertCheck(
        setup=setup.text, expressions=tuple(splitter.expressions), code=code, functions=splitter.functions
    )
    probes = (*_PROBES, *constants, *_calculated(test, splitter.functions))
    if all(check.holds([probe] * len(check.expressions)) for probe in probes):
        raise ValueError(f"{text[:200]!r} is true of every value; compare the call with its expected value")
    return check


def _read_setup(statements: Sequence[ast.stmt], last: ast.stmt, text: str) -> Setup:
    try:
        return read_setup(statements, names_in(last))
    except ValueError as error:
        raise refused(text, str(error)) from error


def _raise_check(test: ast.Call, text: str, splitter: "_Splitter") -> RaiseCheck:
    """The check of `raises(call, kind, match=pattern)`."""
    try:
        raised = read_raise(test)
    except ValueError as error:
        raise refused(text, str(error)) from error
    if splitter.is_outside(raised.call):
        raise refused(text, "expects an error of a call that does not belong to the program")
    splitter.check_program(raised.call)
    return RaiseCheck(
        setup=splitter.setup.text,
        expressions=(ast.unparse(raised.call),),
        kinds=raised.kinds,
        pattern=raised.pattern,
    )


def _compiled(test: ast.expr, text: str) -> CodeType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return compile(ast.Expression(test), "assert", "eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        raise refused(text, f"cannot be compiled: {error}") from error


def _atoms(test: ast.expr) -> Iterator[ast.expr]:
    """The parts of an assert that are each true or false by themselves, such as both sides of `and`."""
    parts: list[ast.expr] = []
    if isinstance(test, ast.BoolOp):
        parts = test.values
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        parts = [test.operand]
    elif isinstance(test, ast.Call) and name_of(test) in ("all", "any") and len(test.args) == 1:
        parts = test.args[0].elts if isinstance(test.args[0], ast.List | ast.Tuple) else []
    if not parts:
        yield test
    for part in parts:
        yield from _atoms(part)


def _constants(test: ast.expr) -> list[Any]:
    """Every constant and every list, tuple or other literal in the assert."""
    found = []
    for node in ast.walk(test):
        if isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp):
            try:
                found.append(ast.literal_eval(node))
            except (ValueError, TypeError):
                continue  # it holds a call
    return found


def _calculated(test: ast.expr, functions: Mapping[str, Any]) -> Iterator[Any]:
    """Value of each part of a split assert that is computed without the program's values, such as `[float("inf")]`."""
    for node in ast.walk(test):
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        is_sum = isinstance(node, ast.BinOp) and not names
        if (
            isinstance(node, ast.expr)
            and not isinstance(node, ast.Name)
            and (is_sum or (names and names <= functions.keys()))
        ):
            try:
                yield eval(
                    compile(ast.Expression(node), "part of an assert", "eval"), {"__builtins__": {}, **functions}
                )
            except _FAILURES:
                continue  # the part raises, so that no value equals it


class _Splitter(ast.NodeTransformer):
    """Replaces the program's expressions by names, and refuses what is unsafe to evaluate outside the sandbox."""

    def __init__(self, text: str, entry_point: str, setup: Setup) -> None:
        self.setup = setup
        self.expressions: list[str] = []
        self.functions: dict[str, Any] = {}
        self._text = text
        self._entry_point = entry_point

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp) and type(node.op) in _CALCULATIONS:
            function = self._outside(type(node.op).__name__, _CALCULATIONS[type(node.op)])
            return ast.Call(func=function, args=[self.visit(node.left), self.visit(node.right)], keywords=[])
        if isinstance(node, ast.Call | ast.Name | ast.Attribute):
            return self._visit_reference(node)
        if isinstance(node, _OUTSIDE_NODES):
            return self.generic_visit(node)
        raise self._refused(type(node).__name__)

    def _visit_reference(self, node: ast.Call | ast.Name | ast.Attribute) -> ast.expr:
        """Replacement for a call or name, which belongs to the program or is evaluated outside the sandbox."""
        name, thing = self._found(node.func if isinstance(node, ast.Call) else node)
        if isinstance(node, ast.Call) and callable(thing):
            arguments = [self.visit(each) for each in node.args]
            keywords = [ast.keyword(arg=each.arg, value=self.visit(each.value)) for each in node.keywords]
            if any(each.arg is None for each in node.keywords):
                raise self._refused("** argument")
            return ast.Call(func=self._outside(name, thing), args=arguments, keywords=keywords)
        if isinstance(node, ast.Call):
            # Other builtins belong to the test: in the sandbox, the program could forge their result.
            if name in dir(builtins) and name != self._entry_point:
                raise self._refused(f"call of {name}")
        elif thing is not None and (name in NAMES or not callable(thing)):
            return self._outside(name, thing)
        self.check_program(node)
        self.expressions.append(ast.unparse(node))
        return ast.Name(id=f"{_VALUE}{len(self.expressions) - 1}", ctx=ast.Load())

    def check_program(self, node: ast.expr) -> None:
        """Refuse an expression that may give the expected value to the program.

        Raises:
            ValueError: If it is refused.
        """
        whole = self.setup.inlined(node)
        loose = {name for call in self.setup.loose for name in subjects(call)}
        names = {*subjects(whole), *loose}
        if len(names) > 1 and loose - {self._entry_point}:
            raise refused(
                self._text,
                f"calls {' and '.join(sorted(names))} in the assert or before it; a constant passed to one of them may "
                "be the expected value and would enter the sandbox",
            )
        if self.setup.text and not names_in(whole) - (_NOT_THE_PROGRAMS - {self._entry_point}):
            raise self._refused("value that does not belong to the program and")
        check_inputs(whole, self._entry_point, self._text)

    def is_outside(self, call: ast.Call) -> bool:
        """Whether the called function does not belong to the program."""
        _, thing = self._found(call.func)
        return thing is not None or not names_in(self.setup.inlined(call)) - (_NOT_THE_PROGRAMS - {self._entry_point})

    def _found(self, function: ast.expr) -> tuple[str, Any]:
        """Name of a function, and the object of that name outside the sandbox; None if it belongs to the program."""
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.setup.chains:
            return name_of(function), None
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.attr, MODULES.get(function.value.id, {}).get(function.attr)
        name = function.id if isinstance(function, ast.Name) else ""
        return name, None if name == self._entry_point else FUNCTIONS.get(name)

    def _outside(self, name: str, thing: Any) -> ast.expr:
        known = f"{_OUTSIDE}{name}"
        self.functions[known] = thing
        return ast.Name(id=known, ctx=ast.Load())

    def check_atom(self, atom: ast.expr) -> None:
        """Refuse a part that uses two names of the program, one of which may be given the expected value.

        Raises:
            ValueError: If it is refused.
        """
        names = sorted({self._name_of_value(each) for each in self._programs(atom)})
        if len(names) > 1:
            raise self._refused(f"comparison of {' and '.join(names)}, which all belong to the program,")

    def _name_of_value(self, node: ast.expr) -> str:
        whole = self.setup.inlined(node)
        name = name_of(whole)
        return name if name != MADE else " and ".join(sorted(names_in(whole) - {MADE}))

    def _programs(self, node: ast.AST) -> Iterator[ast.expr]:
        """The outermost calls and names within a node that belong to the program."""
        if not isinstance(node, ast.Call | ast.Name | ast.Attribute):
            inside = list(ast.iter_child_nodes(node))
        elif self._found(node.func if isinstance(node, ast.Call) else node)[1] is None:
            yield node
            return
        else:
            inside = [*node.args, *(each.value for each in node.keywords)] if isinstance(node, ast.Call) else []
        for each in inside:
            yield from self._programs(each)

    def _refused(self, what: str) -> ValueError:
        return refused(self._text, f"has a {what} that cannot be checked outside the sandbox; write call == value")
