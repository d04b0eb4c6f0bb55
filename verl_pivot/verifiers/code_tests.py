"""A file of tests (HumanEval's `check`, functions for pytest, methods of unittest) -> its asserts, one text each.

The asserts are then split like any other, so that what they expect stays outside the sandbox.
"""

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product

_MAX_ASSERTS = 2_000
_UNITTEST: Mapping[str, str] = {
    **dict.fromkeys(("assertEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual"), "({}) == ({})"),
    "assertSetEqual": "({}) == ({})",
    "assertCountEqual": "Counter({}) == Counter({})",
    "assertNotEqual": "({}) != ({})",
    "assertIn": "({}) in ({})",
    "assertNotIn": "({}) not in ({})",
    "assertIs": "({}) is ({})",
    "assertIsNot": "({}) is not ({})",
    "assertGreater": "({}) > ({})",
    "assertGreaterEqual": "({}) >= ({})",
    "assertLess": "({}) < ({})",
    "assertLessEqual": "({}) <= ({})",
    "assertTrue": "({})",
    "assertFalse": "not ({})",
    "assertIsNone": "({}) is None",
    "assertIsNotNone": "({}) is not None",
    "assertIsInstance": "isinstance({}, {})",
}
"""{method of unittest: the assert that it is}"""
_Names = Mapping[str, ast.expr]
"""{name: expression that stands for it}"""


@lru_cache(1024)
def asserts_of(source: str, entry_point: str) -> tuple[str, ...]:
    """Every assert of a file, with constants in place of variables, and loops over constants written out.

    Args:
        source: The file.
        entry_point: Name of the function under test, which `check(candidate)` gets.

    Raises:
        ValueError: If it holds anything else than asserts and assignments, or no assert.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the tests are no Python: {error}") from error
    names: dict[str, ast.expr] = {}
    found: list[str] = []
    for statement in module.body:
        _read_module_statement(statement, names, found, entry_point)
    if not found:
        raise ValueError("the tests hold no assert")
    return tuple(found)


def _read_module_statement(statement: ast.stmt, names: dict[str, ast.expr], found: list[str], entry_point: str) -> None:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        for function, extra in _test_functions(statement, entry_point):
            for assigned in _parametrized(function):
                given = {**extra, **assigned}
                if unknown := {each.arg for each in function.args.args} - given.keys() - {"self"}:
                    raise ValueError(f"the tests take {', '.join(sorted(unknown))}, which nothing gives; write asserts")
                _read_body(function.body, {**names, **given}, found)
    elif isinstance(statement, ast.Assert | ast.Assign | ast.For):
        names.update(_read_body([statement], names, found))
    elif isinstance(statement, ast.Import | ast.ImportFrom | ast.Expr | ast.If):
        return  # a call of check(...), a docstring, or `if __name__ == "__main__"`
    else:
        raise _unreadable(statement)


def _test_functions(
    statement: ast.FunctionDef | ast.ClassDef, entry_point: str
) -> Iterator[tuple[ast.FunctionDef, _Names]]:
    """Functions with tests, each with names that its parameters stand for."""
    if isinstance(statement, ast.ClassDef):
        for each in statement.body:
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test"):
                yield each, {}
            elif not isinstance(each, ast.Expr | ast.Pass):
                raise _unreadable(each)
    elif statement.name == "check":
        parameters = [each.arg for each in statement.args.args]
        if not entry_point:
            raise ValueError("check(candidate) needs `entry_point`, the name of the function that it gets")
        yield statement, dict.fromkeys(parameters, ast.Name(id=entry_point, ctx=ast.Load()))
    elif statement.name.startswith("test"):
        yield statement, {}
    else:
        raise ValueError(f"the tests define {statement.name}, which would be the program's in the sandbox")


def _parametrized(function: ast.FunctionDef) -> Iterator[dict[str, ast.expr]]:
    """Values of the parameters for each run of a test, as `pytest.mark.parametrize` gives them."""
    tables = []
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith("mark.parametrize"):
            raise _unreadable(decorator)
        named, rows = decorator.args[:2]
        names = _parameter_names(named)
        tables.append([dict(zip(names, _parts(row, len(names)), strict=True)) for row in _items(rows)])
    for combination in product(*tables):
        yield {name: value for assigned in combination for name, value in assigned.items()}


def _parameter_names(named: ast.expr) -> list[str]:
    if isinstance(named, ast.Constant) and isinstance(named.value, str):
        return [name.strip() for name in named.value.split(",")]
    return [each.value for each in _items(named) if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _items(node: ast.expr) -> Sequence[ast.expr]:
    """Items of a list or tuple, or of `range`, `enumerate` or `zip` over such."""
    if isinstance(node, ast.List | ast.Tuple):
        return node.elts
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if not isinstance(node, ast.Call) or node.keywords or not node.args:
        raise _unreadable(node)
    if name == "range":
        return [ast.Constant(value=number) for number in _range(node)]
    if name == "enumerate" and len(node.args) == 1:
        return [_tuple(ast.Constant(value=number), item) for number, item in enumerate(_items(node.args[0]))]
    if name == "zip":
        return [_tuple(*each) for each in zip(*map(_items, node.args), strict=False)]
    raise _unreadable(node)


def _range(node: ast.Call) -> range:
    try:
        numbers = range(*map(ast.literal_eval, node.args))
    except (TypeError, ValueError) as error:
        raise _unreadable(node) from error
    if numbers[_MAX_ASSERTS:]:
        raise _unreadable(node)
    return numbers


def _tuple(*parts: ast.expr) -> ast.expr:
    return ast.Tuple(elts=list(parts), ctx=ast.Load())


def _parts(node: ast.expr, number: int) -> Sequence[ast.expr]:
    parts = [node] if number == 1 else _items(node)
    if len(parts) != number:
        raise _unreadable(node)
    return parts


def _read_body(body: Sequence[ast.stmt], names: _Names, found: list[str]) -> dict[str, ast.expr]:
    """Add the asserts of some statements to `found`; gives the names as they are known after them."""
    known = dict(names)
    for statement in body:
        if isinstance(statement, ast.Assert):
            _add(statement.test, known, found)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            known.update(_assigned(statement.targets[0], _replaced(statement.value, known)))
        elif isinstance(statement, ast.For) and not statement.orelse:
            known.update(_read_loop(statement, known, found))
        elif isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant):
            _add(_unittest_assert(statement.value), known, found)
        elif not isinstance(statement, ast.Pass | ast.Expr):
            raise _unreadable(statement)
    return known


def _read_loop(loop: ast.For, names: _Names, found: list[str]) -> dict[str, ast.expr]:
    known = dict(names)
    for item in _items(_replaced(loop.iter, known)):
        known = _read_body(loop.body, {**known, **_assigned(loop.target, item)}, found)
    return known


def _assigned(target: ast.expr, value: ast.expr) -> dict[str, ast.expr]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple | ast.List):
        parts = _parts(value, len(target.elts))
        pairs = [_assigned(name, part) for name, part in zip(target.elts, parts, strict=True)]
        return {name: part for pair in pairs for name, part in pair.items()}
    raise _unreadable(target)


def _unittest_assert(call: ast.expr) -> ast.expr:
    """The test of `self.assertEqual(f(2), 4)` and the like."""
    is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and bool(call.args)
    if not is_method or not ast.unparse(call.func).startswith("self.assert"):  # type: ignore[attr-defined]  # a Call
        raise _unreadable(call)
    name, arguments = call.func.attr, [ast.unparse(each) for each in call.args]  # type: ignore[attr-defined]
    named = {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg != "msg"}  # type: ignore[attr-defined]
    form = _almost_equal(arguments, named) if name == "assertAlmostEqual" else _UNITTEST.get(name)
    is_known = name == "assertAlmostEqual" or not named
    if form is None or not is_known or len(arguments) < form.count("{}"):
        raise _unreadable(call)
    return ast.parse(form.format(*arguments), mode="eval").body


def _almost_equal(arguments: Sequence[str], named: Mapping[str, str]) -> str | None:
    """The assert of `assertAlmostEqual(first, second, places=7, msg=None, delta=None)`; None for other names."""
    if named.keys() - {"places", "delta"}:
        return None
    if "delta" in named:
        return f"abs(({{}}) - ({{}})) <= {named['delta']}"
    places = arguments[2] if len(arguments) > 2 else named.get("places", "7")
    return f"round(({{}}) - ({{}}), {places}) == 0"


def _add(test: ast.expr, names: _Names, found: list[str]) -> None:
    if isinstance(test, ast.Constant) and test.value is True:
        return  # HumanEval's tests have some
    if len(found) == _MAX_ASSERTS:
        raise ValueError(f"the tests hold more than {_MAX_ASSERTS} asserts")
    replaced = _replaced(test, names)
    found.append(ast.unparse(ast.fix_missing_locations(ast.Assert(test=replaced, msg=None))))


def _replaced(node: ast.expr, names: _Names) -> ast.expr:
    replaced: ast.expr = _NameReplacer(names).visit(copy.deepcopy(node))
    return replaced


class _NameReplacer(ast.NodeTransformer):
    """Puts expressions in place of names, and `f` in place of `solution.f`."""

    def __init__(self, names: _Names) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._names[node.id]) if node.id in self._names else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        is_module = isinstance(node.value, ast.Name) and node.value.id == "solution"
        if is_module and "solution" not in self._names:
            return ast.Name(id=node.attr, ctx=ast.Load())
        self.generic_visit(node)
        return node


def _unreadable(node: ast.AST) -> ValueError:
    return ValueError(f"the tests have {ast.unparse(node)[:100]!r}, which cannot be checked outside; write asserts")
