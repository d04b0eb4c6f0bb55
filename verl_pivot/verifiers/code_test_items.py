"""Expression in a file of tests -> its items, if it is a list, a tuple, a `range` or the like."""

import ast
from collections.abc import Sequence

MAX_ASSERTS = 2_000
"""Most asserts of one file of tests."""


def items(node: ast.expr) -> Sequence[ast.expr]:
    """Items of a list or tuple, or of `range`, `enumerate` or `zip` over these; `pytest.param(1, 2)` is a tuple.

    Raises:
        ValueError: If it is something else.
    """
    if isinstance(node, ast.List | ast.Tuple):
        return node.elts
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.param":
        return node.args
    if not isinstance(node, ast.Call) or node.keywords or not node.args:
        raise unreadable(node)
    if name == "range":
        return [ast.Constant(value=number) for number in _range(node)]
    if name == "enumerate" and len(node.args) == 1:
        return [_tuple(ast.Constant(value=number), item) for number, item in enumerate(items(node.args[0]))]
    if name == "zip":
        return [_tuple(*each) for each in zip(*map(items, node.args), strict=False)]
    raise unreadable(node)


def parts(node: ast.expr, number: int) -> Sequence[ast.expr]:
    """Items of a list or tuple that must have `number` of them.

    Raises:
        ValueError: If it has more or fewer items.
    """
    found = items(node)
    if len(found) != number:
        raise unreadable(node)
    return found


def _range(node: ast.Call) -> range:
    try:
        numbers = range(*map(ast.literal_eval, node.args))
    except (TypeError, ValueError) as error:
        raise unreadable(node) from error
    if numbers[MAX_ASSERTS:]:
        raise unreadable(node)
    return numbers


def _tuple(*each: ast.expr) -> ast.expr:
    return ast.Tuple(elts=list(each), ctx=ast.Load())


def unreadable(node: ast.AST) -> ValueError:
    """Error for a part of the tests that cannot be checked outside the sandbox."""
    return ValueError(
        f"the tests have {ast.unparse(node)[:100]!r}, which cannot be checked outside the sandbox; write asserts"
    )
