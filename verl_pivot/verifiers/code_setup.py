"""Statements before an assert, which the sandbox runs -> the expression that stands for each name they assign.

With these expressions, an assert on `stack` after `stack = Stack()` and `stack.push(1)` is checked like an assert on
`Stack().push(1)`. So the expected value cannot hide in a statement either.
"""

import ast
import builtins
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse

_MAX_NODES = 20_000
MADE = "Made"
"""Placeholder: `Made(object, value, ...)` is an object that statements have changed, with the values that they used."""
_MAKERS = frozenset({"range", "iter", "list", "tuple", "dict", "set", "frozenset", "str", "int", "float", "bytes"})
_MAKERS |= {"bytearray", "complex", "sorted", "reversed", "enumerate", "zip", "deque", "defaultdict", "timedelta"}
_IMPORTED = (sys.stdlib_module_names | {"numpy", "pandas", "scipy", "sympy"}) - {"__future__", "unittest"}
"""Modules that may be imported in the sandbox, where the program's own file is not a module."""
_MODULE_MAKERS: Mapping[str, frozenset[str]] = {
    "collections": frozenset({"deque", "defaultdict"}),
    "datetime": frozenset({"date", "datetime", "time", "timedelta"}),
    **dict.fromkeys(("np", "numpy"), frozenset({"array", "arange", "zeros", "ones", "eye", "linspace"})),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Statements that the sandbox runs before the expressions of an assert."""

    text: str = ""
    """The statements; empty where there are none."""
    chains: Mapping[str, ast.expr] = field(default_factory=dict)
    """{name: expression for its value, with everything that the statements passed to it}"""
    loose: tuple[ast.expr, ...] = ()
    """Calls that concern none of the names, such as `register(4)`."""

    def inlined(self, node: ast.expr) -> ast.expr:
        """The expression, with each name replaced by its chain.

        Raises:
            ValueError: If the result is too large.
        """
        return _Inliner(self.chains).inlined(node)


def read_setup(statements: Sequence[ast.stmt], asserted: set[str]) -> Setup:
    """Read the statements that stand before an assert with the names `asserted`.

    Raises:
        ValueError: If one of them is neither an assignment nor a call, calls a builtin, or assigns an unused constant.
    """
    chains: dict[str, ast.expr] = {}
    loose: list[ast.expr] = []
    unused: set[str] = set()
    for statement in filterfalse(_is_import, statements):
        used = names_in(statement) & chains.keys()
        inliner = _Inliner(chains)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                used -= {name} - names_in(value)
                chains[name] = inliner.inlined(value)
                unused |= {name} if is_constant(value) else set()
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=value) if all(
                isinstance(each, ast.Name) for each in names
            ):
                chains.update(dict.fromkeys((each.id for each in names), inliner.inlined(value)))  # type: ignore[attr-defined]
            case ast.Assign(targets=[(ast.Attribute() | ast.Subscript()) as target], value=value):
                owner, whole = _owner(target), _made(inliner.inlined(target), inliner.inlined(value))
                if owner not in chains:
                    raise ValueError(f"assigns to {ast.unparse(target)!r}, which the test does not define")
                chains[owner] = whole
            case (
                ast.Expr(value=ast.Call() as call)
                | ast.Try(body=[ast.Expr(value=ast.Call() as call)], handlers=[_], orelse=[], finalbody=[])
            ):
                _check_builtin(call, chains)
                changed = {name: _after(name, call, chains) for name in used}
                chains.update(changed)
                loose += [] if used else [inliner.inlined(call)]
            case _:
                raise ValueError(
                    f"has {ast.unparse(statement)[:100]!r} before the assert; only assignments, calls and imports may "
                    "stand there"
                )
        unused -= used
    if unused := unused - asserted:
        raise ValueError(
            f"assigns constants to {', '.join(sorted(unused))} without using them; they may be expected values and "
            "would enter the sandbox"
        )
    return Setup(text="\n".join(map(ast.unparse, statements)), chains=chains, loose=tuple(loose))


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom) and bool(imported_names(statement))


def imported_names(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """Names that an import defines; empty if the sandbox may lack the module, such as the program's own file."""
    if isinstance(statement, ast.ImportFrom):
        modules = [] if statement.level else [statement.module or ""]
    else:
        modules = [each.name for each in statement.names]
    names = {each.asname or each.name.partition(".")[0] for each in statement.names}
    is_known = bool(modules) and all(module.partition(".")[0] in _IMPORTED for module in modules)
    return names if is_known and "*" not in names else set()


def names_in(node: ast.AST) -> set[str]:
    """Every name in a node."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def is_constant(node: ast.expr) -> bool:
    """Whether an expression calls nothing and refers to nothing."""
    return not any(isinstance(each, ast.Call | ast.Name | ast.Attribute) for each in ast.walk(node))


def is_function(node: ast.AST) -> bool:
    """Whether a node calls a function or method, and not one that only makes an object: `Node(1)`, `set()`."""
    return isinstance(node, ast.Call) and not is_maker(node)


def is_maker(node: ast.Call) -> bool:
    """Whether a call only makes an object: of a class, or of a function such as `list`, `sorted` or `np.array`."""
    function = node.func
    module = function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
    name = (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
    if name in _MODULE_MAKERS.get(module, ()):
        return True
    is_class = name.lstrip("_")[:1].isupper()
    return is_class or (isinstance(function, ast.Name) and name in _MAKERS)


def subjects(node: ast.expr) -> Iterator[str]:
    """Name of the function or class with which each call of a function or method begins."""
    for each in ast.walk(node):
        if is_function(each):
            yield _subject(each)


def _subject(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id="Made"), args=[made, *_]):
            return _subject(made)
        case ast.Call(func=inner) | ast.Attribute(value=inner) | ast.Subscript(value=inner):
            return _subject(inner)
    return node.id if isinstance(node, ast.Name) else ""


def _made(*parts: ast.expr) -> ast.expr:
    return ast.Call(func=ast.Name(id=MADE, ctx=ast.Load()), args=list(parts), keywords=[])


def _after(name: str, call: ast.Call, chains: Mapping[str, ast.expr]) -> ast.expr:
    """Expression for a variable after a call that uses it, with everything that the call passed to it."""
    inliner = _Inliner(chains)
    if not isinstance(call.func, ast.Attribute):
        return inliner.inlined(call)
    given = [call.func.value, *call.args, *(each.value for each in call.keywords)]
    others = [each for each in given if not (isinstance(each, ast.Name) and each.id == name)]
    return _made(chains[name], *map(inliner.inlined, others))


def _owner(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _check_builtin(call: ast.Call, chains: Mapping[str, ast.expr]) -> None:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name in dir(builtins) and name not in chains:
        raise ValueError(f"calls the builtin {name} before the assert")


class _Inliner(ast.NodeTransformer):
    """Replaces each name by its chain."""

    def __init__(self, chains: Mapping[str, ast.expr]) -> None:
        self._chains = dict(chains)
        self._num_nodes = 0

    def inlined(self, node: ast.expr) -> ast.expr:
        changed: ast.expr = self.visit(copy.deepcopy(node))
        return changed

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in self._chains:
            return node
        chain = self._chains[node.id]
        self._num_nodes += sum(1 for _ in ast.walk(chain))
        if self._num_nodes > _MAX_NODES:
            raise ValueError(f"has statements before the assert that expand to more than {_MAX_NODES} syntax nodes")
        return copy.deepcopy(chain)
