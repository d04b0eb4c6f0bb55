"""Values of a session <-> pickles, also of functions that its cells define, whose globals are the session's."""

import io
import marshal
import pickle
import re
import sys
import types
from typing import Any

CELL = re.compile(r"<(restored )*cell \d+>")
"""File names of cells, also of those that ran before a snapshot."""
_PROTOCOL = 3
"""Protocol whose pickles number shared objects explicitly. If a pickle cannot be read, later ones lack its objects, but
never get wrong ones in their place."""
_FUNCTION_STATE = (
    *("__name__", "__qualname__", "__module__", "__doc__"),
    *("__defaults__", "__kwdefaults__", "__annotations__"),
)


class CellPickler(pickle.Pickler):
    """Pickler that also takes functions defined in cells; their globals are those of the session."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, _PROTOCOL)
        self._names = sys.modules["__main__"].__dict__

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.CellType):
            return new_cell, (), _cell_state(value), None, None, fill_cell
        if not isinstance(value, types.FunctionType) or value.__globals__ is not self._names:
            return NotImplemented
        state = {name: getattr(value, name) for name in _FUNCTION_STATE}
        arguments = (marshal.dumps(_renamed(value.__code__)), value.__closure__)
        return new_function, arguments, (state, value.__dict__), None, None, fill_function


def new_cell() -> types.CellType:
    """Empty cell of a closure, as a pickle asks for it."""
    return types.CellType()


def _cell_state(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is empty
        return ()


def fill_cell(cell: types.CellType, state: tuple[Any, ...]) -> None:
    """Put the content into a cell; `state` is empty for a cell that has none."""
    for content in state:
        cell.cell_contents = content


def new_function(code: bytes, closure: Any) -> types.FunctionType:
    """Function of a cell, as a pickle asks for it, without the names and values that `fill_function` sets."""
    names = sys.modules["__main__"].__dict__
    return types.FunctionType(marshal.loads(code), names, closure=closure)


def fill_function(function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Set the named attributes of a function, then those that the session gave it."""
    for name, value in state[0].items():
        setattr(function, name, value)
    function.__dict__.update(state[1])


def _renamed(code: types.CodeType) -> types.CodeType:
    """The code with another file name, since the cells of a restored session are numbered from 1 again."""
    if not CELL.fullmatch(code.co_filename):
        return code
    constants = tuple(_renamed(each) if isinstance(each, types.CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=restored_name(code.co_filename), co_consts=constants)


def restored_name(cell: str) -> str:
    """File name of a cell in the sessions that are restored."""
    return f"<restored {cell[1:]}"
