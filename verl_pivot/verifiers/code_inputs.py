"""Expression of an assert that the sandbox evaluates -> whether a constant in it may be the expected value."""

import ast
from collections.abc import Iterator

from verl_pivot.verifiers.code_setup import MADE, is_function, is_maker


def refused(text: str, why: str) -> ValueError:
    """Error for an assert that cannot be checked outside the sandbox."""
    return ValueError(f"{text[:200]!r} {why}")


def check_inputs(expression: ast.expr, entry_point: str, text: str) -> None:
    """Refuse an expression in which one function gets both the value of another one and a constant.

    The constant may then be the value expected of the other function. In `f(Node(1), 2)` all constants are inputs, as
    they are in every call of the entry point.

    Raises:
        ValueError: If it is refused.
    """
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name | ast.Attribute):
            raise refused(text, "calls an expression that has no name; write call == value")
        if isinstance(node, ast.Subscript) and any(map(is_function, ast.walk(node.slice))):
            raise refused(text, "has a call within an index; write call == value")
    if entry_point and isinstance(expression, ast.Call) and entry_point in (name_of(expression), _root(expression)):
        return
    owners = {id(owner): owner for owner in _owners(expression, None) if owner is not None}
    for owner in owners.values():
        inner = [call for call in ast.walk(owner) if call is not owner and is_function(call)]
        if inner or len(owners) > 1:
            names = " and ".join(sorted({name_of(each) for each in owners.values()}))
            raise refused(
                text,
                f"passes constants to {names}; one of them may be the expected value and would enter the sandbox: "
                "compare one call with a value, or name the function under test as `entry_point`",
            )


def _owners(node: ast.AST, owner: ast.Call | None) -> Iterator[ast.Call | None]:
    """The innermost function call around each constant, empty literal and name that is an argument."""
    if isinstance(node, ast.Call):
        inner = node if owner is None or is_function(node) else owner
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        if receiver is not None and not isinstance(receiver, ast.Name):
            yield from _owners(receiver, inner)
        for each in (*node.args, *(keyword.value for keyword in node.keywords)):
            yield from _owners(each, inner)
        return
    children = [] if isinstance(node, ast.Name | ast.Constant) else list(ast.iter_child_nodes(node))
    children = [
        child for child in children if not isinstance(child, ast.expr_context | ast.operator | ast.unaryop | ast.cmpop)
    ]
    if not children:
        yield owner
    for child in children:
        yield from _owners(child, owner)


def name_of(node: ast.expr) -> str:
    """Name of a function, method or variable; empty if the node is something else."""
    function = node.func if isinstance(node, ast.Call) else node
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _root(node: ast.expr) -> str:
    """Name of the class whose object begins a chain of method calls: `Stack` in `Stack().push(1).pop()`."""
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == MADE:
            node = node.args[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id if is_maker(node) else ""
        else:
            node = node.func if isinstance(node, ast.Call) else node.value
    return ""
