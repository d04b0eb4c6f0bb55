"""JSON values: decoding, encoding, types, equality and depth; a value that breaks a format is a BadRowError."""

import json
import re
from collections import Counter
from typing import Self

from verl_pivot.errors import DataError
from verl_pivot.types import Json, JsonObject

HALF_PAIR = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which JSON can spell, but no file and no request can hold."""
MAX_DEPTH = 64
"""Levels of nesting up to which a value is compared and printed."""


class BadRowError(DataError):
    """Error of one row that breaks its format; the import rejects the row and goes on."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        """Short code in snake_case, by which rejected rows are counted."""

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """How pickle makes the error again in another process; by itself it would give `__init__` the detail alone."""
        return type(self), (self.reason, str(self))


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON value")


# Made once: json.dumps and json.loads would make a new encoder or decoder for each value with these options.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_SORTING_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True)


def decode_json(text: str | bytes, *, reason: str = "not_json", what: str = "the row") -> Json:
    """The value that a JSON text holds; bytes are UTF-8, NaN and Infinity are refused.

    Args:
        text: JSON text.
        reason: Code of the error.
        what: Name of the text in the error's message.

    Raises:
        BadRowError: If the text is not JSON.
    """
    try:
        value: Json = _DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError as error:
        raise BadRowError(reason, f"{what}: nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError and a number with too many digits
        raise BadRowError(reason, f"{what}: not JSON: {error}") from error
    return value


def encode_json(value: Json, *, sort_keys: bool = False) -> str:
    """One line of JSON that every JSON reader accepts: without NaN and without text that UTF-8 cannot hold.

    Raises:
        BadRowError: If the value has no such form.
    """
    try:
        text = (_SORTING_ENCODER if sort_keys else _ENCODER).encode(value)
        text.encode()
    except RecursionError as error:
        raise BadRowError("not_json", "a value is nested too deeply") from error
    except (TypeError, ValueError) as error:  # not a JSON type, NaN, or a lone surrogate
        raise BadRowError("not_json", f"a value has no JSON form: {error}") from error
    return text


def object_of_unique_names(pairs: list[tuple[str, Json]]) -> JsonObject:
    """The object of these pairs, for `json.loads`. No name may stand twice: readers differ in the value they take.

    Raises:
        ValueError: If a name stands twice.
    """
    values = dict(pairs)
    if len(values) != len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{repeated!r} stands twice in an object")
    return values


def as_object(value: Json, what: str) -> JsonObject:
    """The value, if it is an object.

    Raises:
        BadRowError: If the value is not an object; `what` names it in the message.
    """
    if not isinstance(value, dict):
        raise BadRowError("not_an_object", f"{what} must be a JSON object, got {type_in_words(value)}")
    return value


def as_list(value: Json, what: str) -> list[Json]:
    """The value, if it is a list; null becomes an empty list.

    Raises:
        BadRowError: If the value is anything else; `what` names it in the message.
    """
    if value is not None and not isinstance(value, list):
        raise BadRowError("not_a_list", f"{what} must be a JSON list, got {type_in_words(value)}")
    return value or []


_JSON_TYPES = {bool: "boolean", type(None): "null", int: "number", float: "number", str: "string", list: "array"}
_WORDS = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}


def json_type(value: Json) -> str:
    """Name of the JSON type: "boolean", "null", "number" (integers too), "string", "array" or "object"."""
    return _JSON_TYPES.get(type(value), "object")


def type_in_words(value: object) -> str:
    """Type of a value for messages: "null", "a number", "text", "an object", ..."""
    return _WORDS.get(type(value), "an object" if isinstance(value, dict) else type(value).__name__)


def equal(value: Json, other: Json) -> bool:
    """Whether two values are equal as JSON: 1 equals 1.0, but neither true nor "1"; NaN equals nothing."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(equal(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(equal, value, other))
    return json_type(value) == json_type(other) and value == other


def all_differ(values: list[Json]) -> bool:
    """Whether no two of the values are equal as JSON, in time linear in their length."""
    return len({json.dumps(_one_form(value), sort_keys=True) for value in values}) == len(values)


def _one_form(value: Json) -> Json:
    """The value with whole numbers written without a point, so that equal values have one text."""
    if isinstance(value, dict):
        return {name: _one_form(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_one_form(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def equal_texts(first: str, second: str) -> bool:
    """Whether two results of calls are equal, as texts or as JSON values."""
    if first == second:
        return True
    try:
        return equal(decode_json(first), decode_json(second))
    except BadRowError:
        return False


def is_too_deep(value: Json) -> bool:
    """Whether a value is nested deeper than MAX_DEPTH; true also for values that contain themselves."""
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
