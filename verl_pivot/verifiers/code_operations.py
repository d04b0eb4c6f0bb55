"""Functions that an assert may apply to a program's values outside the sandbox, with bounded time and memory."""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from verl_pivot.verifiers.code_approx import Approx
from verl_pivot.verifiers.code_values import MAX_ITEMS, bounded_decimal, bounded_range, check_hashes

_MAX_BITS = 1 << 21
_MAX_FRACTIONS = 100
"""Largest number of fractions in one sum; each of them adds digits to the result."""


def multiply(first: Any, second: Any) -> Any:
    """first * second."""
    for one, other in ((first, second), (second, first)):
        if hasattr(one, "__len__"):
            if not isinstance(other, int) or len(one) * max(other, 0) > MAX_ITEMS:
                raise ValueError("a product of more than a million items")
            return one * other
    if _bits(first) + _bits(second) > _MAX_BITS:
        raise ValueError("a product of too many digits")
    return first * second


def power(base: Any, exponent: Any) -> Any:
    """base ** exponent."""
    if isinstance(base, int) and isinstance(exponent, int) and _bits(base) * abs(exponent) > _MAX_BITS:
        raise ValueError("a power of too many digits")
    if not isinstance(base, int | float | complex) or not isinstance(exponent, int | float | complex):
        raise TypeError("a power of values that are not numbers")
    return base**exponent


def remainder(first: Any, second: Any) -> Any:
    """first % second; a text on the left is refused, since formatting it can fill the memory."""
    if isinstance(first, str | bytes | bytearray):
        raise TypeError("% on a text is not allowed")
    return first % second


def _bits(number: Any) -> int:
    return number.bit_length() if isinstance(number, int) else 64


def _round(number: Any, digits: Any = None) -> Any:
    if digits is not None and abs(digits) > 1000:
        raise ValueError("rounded to more than 1000 digits")
    return round(number, digits)


def _sum(values: Any, start: Any = 0) -> Any:
    items = [start, *values]
    if not all(isinstance(item, int | float | complex | Decimal | Fraction) for item in items):
        raise TypeError("a sum of values that are not numbers")
    if sum(isinstance(item, Fraction) for item in items) > _MAX_FRACTIONS:
        raise ValueError(f"a sum of more than {_MAX_FRACTIONS} fractions")
    return sum(items)


def _bytes(values: Any = b"") -> bytes:
    if isinstance(values, int):
        raise TypeError("bytes(n) of a number n is not allowed")
    return bytes(values)


def _decimal(value: Any = 0) -> Decimal:
    return bounded_decimal(str(value)) if isinstance(value, str | Decimal) else Decimal(value)


def _fraction(numerator: Any = 0, denominator: Any = None) -> Fraction:
    if isinstance(numerator, str) and not numerator.replace("/", "").strip().isdigit():
        raise ValueError("a fraction of a text that is not a number in digits")
    return Fraction(numerator, denominator)


def _set(values: Any = ()) -> set[Any]:
    items = list(values)
    check_hashes(items)
    return set(items)


def _frozenset(values: Any = ()) -> frozenset[Any]:
    return frozenset(_set(values))


def _dict(values: Any = (), **names: Any) -> dict[Any, Any]:
    items = list(values.items()) if isinstance(values, Mapping) else [tuple(pair) for pair in values]
    check_hashes(key for key, _ in items)
    return dict(items, **names)


def _counter(values: Any = (), **names: Any) -> Counter[Any]:
    items = values if isinstance(values, Mapping) else list(values)
    check_hashes(items)
    return Counter(items, **names)


def _ordered_dict(values: Any = (), **names: Any) -> OrderedDict[Any, Any]:
    return OrderedDict(_dict(values, **names))


def _default_dict(_kind: Any = None, values: Any = (), **names: Any) -> dict[Any, Any]:
    """A plain dictionary in place of a defaultdict: both equal every dictionary with the same items."""
    return _dict(values, **names)


def _isinstance(value: Any, kinds: Any) -> bool:
    return isinstance(value, tuple(map(_kind, kinds)) if isinstance(kinds, tuple) else _kind(kinds))


def _kind(named: Any) -> Any:
    return next((kind for kind, function in _GUARDED.items() if function is named), named)


def _type(value: Any) -> Any:
    return _GUARDED.get(type(value), type(value))


_GUARDED: Mapping[type, Callable[..., Any]] = {
    set: _set,
    frozenset: _frozenset,
    dict: _dict,
    range: bounded_range,
    bytes: _bytes,
    Counter: _counter,
    OrderedDict: _ordered_dict,
    Fraction: _fraction,
    Decimal: _decimal,
}
"""{type: function that stands for it in an assert}"""
FUNCTIONS: Mapping[str, Any] = {
    **{each.__name__: each for each in (abs, all, any, bool, complex, float, int, len, list, max, min, sorted)},
    **{each.__name__: each for each in (str, tuple, deque)},
    **{kind.__name__: function for kind, function in _GUARDED.items()},
    "approx": Approx,
    "isclose": math.isclose,
    "round": _round,
    "sum": _sum,
    "isinstance": _isinstance,
    "type": _type,
    "defaultdict": _default_dict,
}
"""{name in an assert: function}"""
MODULES: Mapping[str, Mapping[str, Any]] = {
    "math": {
        name: getattr(math, name)
        for name in ("isclose", "sqrt", "floor", "ceil", "log", "exp", "sin", "cos", "pi", "e", "inf", "nan", "tau")
    },
    "collections": {name: FUNCTIONS[name] for name in ("Counter", "OrderedDict", "defaultdict", "deque")},
    "fractions": {"Fraction": _fraction},
    "pytest": {"approx": Approx},
    "decimal": {"Decimal": _decimal},
}
"""{module: {name: function or number}}"""
NAMES = frozenset({"bool", "complex", "float", "int", "list", "str", "tuple", "deque", "len", "abs"})
NAMES |= {kind.__name__ for kind in _GUARDED}
"""Names that may stand in an assert without being called, as in `isinstance(f(1), int)` or `sorted(f(1), key=len)`."""
