"""Text of a value, written as JSON or as Python prints it -> the value."""

import ast
import warnings

from verl_pivot.data.json_values import BadRowError, decode_json
from verl_pivot.types import Json

NOT_A_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
"""Errors that `ast` and `json_value` raise for text that is not a literal, or is nested too deeply."""
_JSON_NAMES: dict[str, Json] = {"true": True, "false": False, "null": None}
_MAX_DEPTH = 100  # Python's own parser stops at 200; a long row of signs could exhaust its stack


def parse_literal(text: str, *, reason: str, what: str) -> Json:
    """Parse a value that some logs write as JSON and others as Python prints it.

    Args:
        text: Text of the value.
        reason: Code of the error.
        what: Name of the text in the error's message.

    Raises:
        BadRowError: If the text is neither.
    """
    try:
        return decode_json(text, reason=reason, what=what)
    except BadRowError as not_json:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about unknown escapes such as "\d", which Python keeps as they are
                return json_value(ast.parse(text.strip(), mode="eval").body)
        except NOT_A_LITERAL:
            raise not_json from None


def json_value(node: ast.expr, depth: int = 0) -> Json:
    """Value of a Python literal that JSON can hold; the names true, false and null are read as in JSON.

    Raises:
        ValueError: If the node is anything else.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deeply")
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items):
            return [json_value(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): json_value(value, depth + 1) for key, value in zip(keys, values, strict=True)}
        case _:
            raise ValueError(f"{type(node).__name__} is not a JSON value")


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("a key is not text")  # noqa: TRY004  # as `ast.literal_eval` does
    return node.value
