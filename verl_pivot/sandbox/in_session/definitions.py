"""Cells of a session -> their sources, and the statements in them that define names."""

import ast
import linecache

from verl_pivot.sandbox.in_session.pickling import CELL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Place: TypeAlias = tuple[str, int]

_SCOPE = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def defining_cells() -> dict[str, str]:
    """{name of a cell: source} of the cells that define something, in the order in which they ran."""
    found = {}
    for name, entry in linecache.cache.items():
        if CELL.fullmatch(name) and len(entry) == 4:
            source = "".join(entry[2])
            if _defines(parsed(source)):
                found[name] = source
    return dict(sorted(found.items(), key=lambda item: (-item[0].count("restored"), int(item[0].split()[-1][:-1]))))


def _defines(cell: ast.Module) -> bool:
    """Whether a cell has a function or class anywhere, or assigns the result of a call, such as namedtuple()."""
    has_call = any(isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) for each in cell.body)
    return has_call or any(isinstance(node, _SCOPE | ast.Lambda) for node in ast.walk(cell))


def parsed(source: str) -> ast.Module:
    """Syntax tree of a cell; an empty tree if the cell is no valid Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def definitions(cells: dict[str, str]) -> dict[str, "Place"]:
    """{name: (cell, index) of the latest statement at the top level of a cell that defines it}."""
    found = {}
    for cell, source in cells.items():
        for index, statement in enumerate(parsed(source).body):
            if isinstance(statement, _SCOPE):
                found[statement.name] = (cell, index)
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                found[statement.targets[0].id] = (cell, index)
    return found


def first_line(statement: ast.stmt) -> int:
    """Number of the first line of a statement, with its decorators."""
    decorators = statement.decorator_list if isinstance(statement, _SCOPE) else []
    return min([statement.lineno, *(each.lineno for each in decorators)])
