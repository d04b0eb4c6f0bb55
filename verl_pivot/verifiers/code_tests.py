"""A file of tests (HumanEval's `check`, functions for pytest, methods of unittest) -> its asserts, one text each.

The asserts are then split like any other, so that the expected values stay outside the sandbox.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

from verl_pivot.verifiers.code_test_bodies import TestBody, is_docstring
from verl_pivot.verifiers.code_test_file import TestFile
from verl_pivot.verifiers.code_test_items import items, parts, unreadable

_SETUP_METHODS = ("setUp", "setup_method")
_READ = (ast.Assert, ast.Assign, ast.AnnAssign, ast.For, ast.Import, ast.ImportFrom, ast.Expr)
"""Top-level statements of the file that are read like those of a test."""
_OTHER_METHODS = ("setUpClass", "setup_class", "tearDown", "teardown_method", "tearDownClass", "teardown_class")


@lru_cache(1024)
def asserts_of(source: str, entry_point: str) -> tuple[str, ...]:
    """Every assert of a file, each after the statements whose effects it needs.

    Args:
        source: Text of the file.
        entry_point: Name of the function under test, which is passed to `check(candidate)`.

    Raises:
        ValueError: If the file holds something that cannot be checked outside the sandbox, or no assert.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the tests are not valid Python: {error}") from error
    file = TestFile(entry_point=entry_point, taken=_names_of_functions(module))
    tests = [_read_definition(statement, file) for statement in module.body]
    body = TestBody(file, {})
    for statement, found in zip(module.body, tests, strict=True):
        if isinstance(statement, _READ) and not _is_start(statement):
            body.read_test([statement])
        for before, function in found:
            _read_test(before, function, body)
    if not file.asserts:
        raise ValueError("the tests contain no assert")
    return tuple(file.asserts)


_Test = tuple[Sequence[ast.stmt], ast.FunctionDef]
"""(statements that run before a test, function of the test)"""


def _names_of_functions(module: ast.Module) -> set[str]:
    """Names in the file that are called, or whose attributes are used."""
    calls = {each.func for each in ast.walk(module) if isinstance(each, ast.Call)}
    owners = {each.value for each in ast.walk(module) if isinstance(each, ast.Attribute)}
    return {each.id for each in calls | owners if isinstance(each, ast.Name)}


def _read_definition(statement: ast.stmt, file: TestFile) -> list[_Test]:
    """Tests that a top-level statement defines; helper functions and fixtures are stored in `file`."""
    if isinstance(statement, ast.ClassDef):
        return _read_class(statement, file)
    if isinstance(statement, ast.FunctionDef):
        return [([], statement)] if _is_test(statement, file) else []
    if not isinstance(statement, _READ) and not _is_start(statement):
        raise unreadable(statement)
    return []


def _is_start(statement: ast.stmt) -> bool:
    """Whether a statement runs the tests: `check(f)`, `test_f()`, `unittest.main()` or `if __name__ == "__main__"`."""
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) in ("__name__ == '__main__'", "'__main__' == __name__")
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    name, given = ast.unparse(call.func), [*call.args, *call.keywords]
    is_check = name == "check" and all(isinstance(each, ast.Name) for each in given)
    return name in ("main", "unittest.main", "pytest.main") or is_check or (name.startswith("test") and not given)


def _is_test(function: ast.FunctionDef, file: TestFile) -> bool:
    """Whether a function is a test; helper functions and fixtures are stored in `file`."""
    if function.name == "check":
        if not file.entry_point:
            raise ValueError("check(candidate) needs `entry_point`, the name of the function under test")
        return True
    if any(ast.unparse(each) in ("pytest.fixture", "fixture", "pytest.fixture()") for each in function.decorator_list):
        file.fixtures[function.name] = function
        return False
    if any("fixture" in ast.unparse(each) for each in function.decorator_list):
        raise unreadable(function)  # a fixture with parameters or a scope, or one that runs although no test names it
    if function.name.startswith("test"):
        return True
    file.functions[function.name] = function
    return False


def _read_class(statement: ast.ClassDef, file: TestFile) -> list[_Test]:
    before: list[ast.stmt] = []
    tests: list[ast.FunctionDef] = []
    for each in statement.body:
        changed = _SelfNames(statement.name).visit(each)
        if isinstance(changed, ast.FunctionDef):
            _read_method(_without_self(changed), before, tests, file)
        elif isinstance(changed, ast.Assign):
            before.insert(0, _SelfNames(statement.name, assigned=True).visit(changed))
        elif not isinstance(changed, ast.Pass) and not is_docstring(changed):
            raise unreadable(each)
    return [(before, test) for test in tests]


def _read_method(method: ast.FunctionDef, before: list[ast.stmt], tests: list[ast.FunctionDef], file: TestFile) -> None:
    """Add a method to the tests, to the statements before each test, or to the helper functions."""
    if method.name in _SETUP_METHODS:
        before += method.body
    elif method.name in _OTHER_METHODS:
        raise unreadable(method)
    elif _is_test(method, file):
        tests.append(method)
    elif method.name in file.functions:
        file.functions[f"self_{method.name}"] = file.functions.pop(method.name)


def _without_self(method: ast.FunctionDef) -> ast.FunctionDef:
    """A method as a function: without `self`, or without the decorator of a static method."""
    if method.decorator_list and ast.unparse(method.decorator_list[0]) == "staticmethod":
        method.decorator_list = method.decorator_list[1:]
    else:
        method.args.args = method.args.args[1:]
    return method


class _SelfNames(ast.NodeTransformer):
    """Replaces `self.x` by `self_x`, unless `x` is a method of unittest."""

    def __init__(self, class_name: str, *, assigned: bool = False) -> None:
        self._owners = ("self", "cls", class_name)
        self._assigned = assigned

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        is_own = isinstance(node.value, ast.Name) and node.value.id in self._owners
        if is_own and not node.attr.startswith("assert") and node.attr != "subTest":
            return ast.copy_location(ast.Name(id=f"self_{node.attr}", ctx=node.ctx), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        is_assigned = self._assigned and isinstance(node.ctx, ast.Store)
        return ast.copy_location(ast.Name(id=f"self_{node.id}", ctx=node.ctx), node) if is_assigned else node


def _read_test(before: Sequence[ast.stmt], function: ast.FunctionDef, module: TestBody) -> None:
    for assigned in _parametrized(function, module):
        body = module.fork()
        body.read(before)
        for parameter in function.args.args:
            if function.name == "check":
                body.names[parameter.arg] = ast.Name(id=body.entry_point, ctx=ast.Load())
            elif parameter.arg not in assigned:
                body.names[parameter.arg] = body.use_fixture(parameter.arg)
        body.names.update(assigned)
        body.read_test(function.body)


def _parametrized(function: ast.FunctionDef, module: TestBody) -> Iterator[dict[str, ast.expr]]:
    """Values of the parameters for each run of a test, as `pytest.mark.parametrize` gives them."""
    tables = []
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or not ast.unparse(decorator.func).endswith("mark.parametrize"):
            raise unreadable(decorator)
        named, rows = decorator.args[:2]
        names = _parameter_names(named)
        tables.append([_row(names, row) for row in items(module.replaced(rows))])
    for combination in product(*tables):
        yield {name: value for assigned in combination for name, value in assigned.items()}


def _row(names: Sequence[str], row: ast.expr) -> dict[str, ast.expr]:
    is_param = isinstance(row, ast.Call) and ast.unparse(row.func) == "pytest.param"
    values = parts(row, len(names)) if is_param or len(names) > 1 else [row]
    return dict(zip(names, values, strict=True))


def _parameter_names(named: ast.expr) -> list[str]:
    if isinstance(named, ast.Constant) and isinstance(named.value, str):
        return [name.strip() for name in named.value.split(",")]
    return [each.value for each in items(named) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
