"""Text of a value, as JSON or as Python prints it -> the value."""

import ast
import warnings

from verl_pivot.data.json_values import BadRowError, decode_json
from verl_pivot.types import Json

NOT_A_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
"""What `ast` raises for text that is no literal, or is nested too deeply for it."""
_NAMES: dict[str, Json] = {"true": True, "false": False, "null": None}
_MAX_NESTING = 100  # Python's own parser stops at 200; a long row of signs could exhaust its stack


def value_of(text: str, *, reason: str, what: str) -> Json:
    """A value that some logs write as JSON and others as Python's `str` of it.

    Raises:
        BadRowError: If it is neither; `reason` and `what` tell where.
    """
    try:
        return decode_json(text, reason=reason, what=what)
    except BadRowError as not_json:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an escape such as "\d" stands for itself
                return json_value(ast.parse(text.strip(), mode="eval").body)
        except NOT_A_LITERAL:
            raise not_json from None


def json_value(node: ast.expr, nesting: int = 0) -> Json:
    """The value of a literal that JSON has, too; JSON's true, false and null are read as well.

    Raises:
        ValueError: If it is anything else.
    """
    if nesting > _MAX_NESTING:
        raise ValueError("nested too deeply")
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items):
            return [json_value(item, nesting + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): json_value(value, nesting + 1) for key, value in zip(keys, values, strict=True)}
        case _:
            raise ValueError(f"{type(node).__name__} is no JSON value")


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("a key that is no text")  # noqa: TRY004  # as `ast.literal_eval` does
    return node.value
