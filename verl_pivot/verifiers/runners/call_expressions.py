"""Runs in the sandbox: executes a program, evaluates expressions after it, and writes their values to a file.

The program shares the interpreter and may write anything itself; the values are compared outside the sandbox.
plan.json: {"code", "checks": [{"setup": statements that run before, "expressions"}], "max_bytes"}
values.json: [{"value": JSON} | {"error": text, "kinds": [class]} | {"strange": text} | {"large": bytes}]
code_values.py reads them.
"""

import builtins
import json
import os
import sys
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, UserString, deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType, ModuleType
from typing import Any

SMALL_INT = 1 << 8192
VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}

VALUES = os.path.abspath("values.json")
with open("plan.json", encoding="utf-8") as _file:
    _plan = json.load(_file)


class StrangeError(TypeError):
    """A value is not plain, so that nothing outside the sandbox could equal it."""


class LargeError(ValueError):
    """A value has more items than bytes may be written."""


def encode(value: Any, left: list[int]) -> Any:
    """A plain value as JSON; values that JSON lacks become {kind: content}.

    Args:
        value: Value of an expression.
        left: [1] items that may still be encoded.
    """
    left[0] -= 1
    if left[0] < 0:
        raise LargeError
    if value is None or isinstance(value, bool):
        return value
    for kind, name, function in KINDS:
        if isinstance(value, kind):
            content = function(value, left)
            return {name: content} if name else content
    return encode_rare(value, left)


def encode_rare(value: Any, left: list[int]) -> Any:
    if type(value) in VIEWS:
        return {VIEWS[type(value)]: encode_items(map(list, value) if VIEWS[type(value)] == "items" else value, left)}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not hasattr(value, "__len__"):
        return encode(value.item(), left)
    if hasattr(value, "__next__"):
        return {"iterator": encode_items(value, left)}
    raise StrangeError(f"a value of type {type(value).__name__}")


def encode_items(value: Any, left: list[int]) -> Any:
    return [encode(each, left) for each in value]


def encode_pairs(value: Any, left: list[int]) -> Any:
    return [[encode(key, left), encode(each, left)] for key, each in value.items()]


def encode_int(value: Any, left: list[int]) -> Any:
    number = int(value)
    return number if -SMALL_INT < number < SMALL_INT else {"int": hex(number)}


def encode_fraction(value: Any, left: list[int]) -> Any:
    return [encode_int(value.numerator, left), encode_int(value.denominator, left)]


KINDS: list[tuple[type, str, Callable[[Any, list[int]], Any]]] = [
    (int, "", encode_int),
    (float, "", lambda value, left: float(value)),
    (str, "", lambda value, left: str.__str__(value)),
    (list, "", encode_items),
    (tuple, "tuple", encode_items),
    (Counter, "Counter", encode_pairs),
    (OrderedDict, "OrderedDict", encode_pairs),
    (dict, "dict", encode_pairs),
    (set, "set", encode_items),
    (frozenset, "frozenset", encode_items),
    (deque, "deque", encode_items),
    (UserDict, "dict", encode_pairs),
    (ChainMap, "dict", encode_pairs),
    (MappingProxyType, "dict", encode_pairs),
    (UserList, "", encode_items),
    (UserString, "", lambda value, left: str(value)),
    (bytes, "bytes", lambda value, left: value.hex()),
    (bytearray, "bytearray", lambda value, left: value.hex()),
    (complex, "complex", lambda value, left: [value.real, value.imag]),
    (Fraction, "Fraction", encode_fraction),
    (Decimal, "Decimal", lambda value, left: str(value)),
    (range, "range", lambda value, left: [value.start, value.stop, value.step]),
]
"""[type of value, its name in the file, function that encodes its content]"""


def evaluate(expression: str, names: dict[str, object], max_bytes: int) -> str:
    """The expression's value as one item of values.json."""
    try:
        text = json.dumps({"value": encode(eval(expression, names), [max_bytes])})
    except LargeError:
        return json.dumps({"large": f"more than {max_bytes}"})
    except StrangeError as error:
        return json.dumps({"strange": str(error)[:300]})
    except Exception as error:  # noqa: BLE001  the program may raise anything
        return json.dumps({"error": f"{type(error).__name__}: {str(error)[:300]}", "kinds": kinds(error)})
    return text if len(text) <= max_bytes else json.dumps({"large": len(text)})


def kinds(error: BaseException) -> list[str]:
    """Classes of an error, the most specific first; those of Python itself have the prefix "builtins."."""
    classes = [each for each in type(error).__mro__ if issubclass(each, BaseException)]
    return [
        f"{'builtins' if vars(builtins).get(each.__name__) is each else 'other'}.{each.__name__}" for each in classes
    ]


def prepare(setup: str, names: dict[str, object]) -> tuple[dict[str, object], str | None]:
    """Names for a check after its setup statements, and an item of values.json if these statements fail."""
    if not setup:
        return names, None
    local = dict(names)
    try:
        exec(compile(setup, "test.py", "exec"), local)
    except Exception as error:  # noqa: BLE001  the program may raise anything
        return local, json.dumps({"error": f"{type(error).__name__}: {str(error)[:300]}"})
    return local, None


_module = sys.modules["candidate"] = ModuleType("candidate")  # so that objects of the program can be pickled
_names = vars(_module)
_program = _plan["code"].encode()  # as bytes, which may begin with a byte order mark; a str may not
exec(compile(_program, "candidate.py", "exec"), _names)
_values: list[str] = []
for _check in _plan["checks"]:
    _local, _failure = prepare(_check["setup"], _names)
    for _expression in _check["expressions"]:
        _left = _plan["max_bytes"] - sum(map(len, _values))
        _values.append(_failure or evaluate(_expression, _local, _left))
with open(VALUES, "w", encoding="utf-8") as _file:
    _file.write("[" + ", ".join(_values) + "]")
