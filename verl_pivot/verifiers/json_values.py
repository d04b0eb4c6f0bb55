"""JSON values: kinds, equality as a tool sees it, and a bound on how deep they are."""

from verl_pivot.types import Json

MAX_DEPTH = 64
_KINDS = {bool: "boolean", type(None): "null", int: "number", float: "number", str: "string", list: "array"}


def kind_of(value: Json) -> str:
    """JSON's name of its type; integers and other numbers are of one kind."""
    return _KINDS.get(type(value), "object")


def equal(value: Json, other: Json) -> bool:
    """1 equals 1.0 (both are numbers) but neither true nor "1"; NaN equals nothing."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(equal(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(equal, value, other))
    return kind_of(value) == kind_of(other) and value == other


def is_too_deep(value: Json) -> bool:
    """Whether it is nested deeper than MAX_DEPTH; also for values that hold themselves."""
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return False
    return True


def _children(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
