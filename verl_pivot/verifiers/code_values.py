"""Content of values.json -> plain values of a program's expressions, or the problem of an expression without a value.

The program may have written the file itself, so every step is bounded: the size, the digits of a number, and the work
to build a set or a dictionary whose items have equal hashes.
"""

import json
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from verl_pivot.verifiers.verdicts import Reason

MAX_BYTES = 256 * 1024
"""Most bytes that the values of all expressions may have together."""
MAX_ITEMS = 1_000_000
"""Most items of a range, or of a list or text that an assert repeats."""
MAX_DIGITS = 4_000
"""Most digits and largest decimal exponent of a Decimal, and most digits of each part of a Fraction."""
MAX_EQUAL_HASHES = 64
"""Most items of a set or dictionary with the same hash; the time to build it grows with the square of their number."""
_MAX_KINDS = 100
_FAILURES = (ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Value of one expression; there is no value if `problem` is not None."""

    value: Any = None
    problem: Reason | None = None
    detail: str = ""
    error_kinds: tuple[str, ...] = ()
    """Classes of the error that the expression raised, each as "builtins.name" or "other.name"."""


def read_values(content: bytes, num_expressions: int) -> list[Evaluated] | None:
    """[num_expressions] values; None if the content is not in the format that the runner writes."""
    if len(content) > MAX_BYTES:
        return [_too_large(len(content))] * num_expressions
    try:
        answers = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answers, list) or len(answers) != num_expressions:
        return None
    return [_evaluated(answer) for answer in answers]


def _too_large(size: object) -> Evaluated:
    return Evaluated(problem=Reason.OUTPUT_LIMIT, detail=f"the values have {size} bytes; the limit is {MAX_BYTES}")


def _evaluated(answer: object) -> Evaluated:
    match answer:
        case {"value": coded}:
            try:
                return Evaluated(value=_decoded(coded))
            except _FAILURES as error:
                return Evaluated(problem=Reason.WRONG_OUTPUT, detail=f"not a plain value: {error}"[:300])
        case {"error": str(error), "kinds": list(kinds)} if len(kinds) <= _MAX_KINDS:
            names = tuple(map(str, kinds))
            return Evaluated(problem=Reason.RUNTIME_ERROR, detail=error[:300], error_kinds=names)
        case {"error": str(error)}:
            return Evaluated(problem=Reason.RUNTIME_ERROR, detail=error[:300])
        case {"large": size}:
            return _too_large(size)
        case {"strange": what}:
            return Evaluated(problem=Reason.WRONG_OUTPUT, detail=f"not a plain value: {what}"[:300])
    return Evaluated(problem=Reason.WRONG_OUTPUT, detail="the value in the program's output file has an unknown format")


def check_hashes(items: Iterable[Hashable]) -> None:
    """Check that a set or dictionary of these items is built in about linear time.

    Raises:
        ValueError: If too many items have the same hash.
        TypeError: If an item cannot be hashed.
    """
    hashes = sorted(map(hash, items))
    longest = MAX_EQUAL_HASHES
    if any(first == last for first, last in zip(hashes, hashes[longest:], strict=False)):
        raise ValueError(f"more than {longest} items have the same hash")


def _decoded(coded: Any) -> Any:
    if isinstance(coded, list):
        return [_decoded(each) for each in coded]
    if not isinstance(coded, dict):
        return coded
    ((kind, content),) = coded.items()
    return _KINDS[kind](content)


def _hashed(make: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def decoded(content: Any) -> Any:
        items = _decoded_list(content)
        check_hashes(items)
        return make(items)

    return decoded


def _mapping(make: Callable[[Any], Mapping[Any, Any]]) -> Callable[[Any], Any]:
    def decoded(content: Any) -> Any:
        pairs = _decoded_list(content)
        check_hashes(key for key, _ in pairs)
        return make(dict(pairs)) if make is Counter else make(pairs)

    return decoded


def _decoded_list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError(f"{str(content)[:80]} is not a list")
    return [_decoded(each) for each in content]


def _integer(content: str) -> int:
    return int(content, 16)  # takes linear time; decimal digits would not


def _fraction(content: Any) -> Fraction:
    numerator, denominator = _decoded_list(content)
    if max(abs(numerator), abs(denominator)) >= 10**MAX_DIGITS:
        raise ValueError(f"a fraction of more than {MAX_DIGITS} digits")
    return Fraction(numerator, denominator)


def bounded_decimal(content: str) -> Decimal:
    """A decimal number that can be turned into a whole number in little time.

    Raises:
        ValueError: If it has more than MAX_DIGITS digits or zeros.
    """
    number = Decimal(content)
    if number.is_finite() and (len(content) > MAX_DIGITS or abs(number.adjusted()) > MAX_DIGITS):
        raise ValueError(f"a decimal number of more than {MAX_DIGITS} digits")
    return number


def _range(content: Sequence[int]) -> range:
    return bounded_range(*content)


def bounded_range(*bounds: int) -> range:
    """range(*bounds), if it is not so long that a list of it would fill the memory.

    Raises:
        ValueError: If it has more than MAX_ITEMS items.
    """
    numbers = range(*bounds)
    if numbers[MAX_ITEMS : MAX_ITEMS + 1]:
        raise ValueError(f"a range of more than {MAX_ITEMS} numbers")
    return numbers


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "int": _integer,
    "tuple": lambda content: tuple(_decoded_list(content)),
    "set": _hashed(set),
    "frozenset": _hashed(frozenset),
    "deque": lambda content: deque(_decoded_list(content)),
    "dict": _mapping(dict),
    "Counter": _mapping(Counter),
    "OrderedDict": _mapping(OrderedDict),
    "bytes": lambda content: bytes.fromhex(content),
    "bytearray": lambda content: bytearray.fromhex(content),
    "complex": lambda content: complex(*content),
    "Fraction": _fraction,
    "Decimal": bounded_decimal,
    "range": _range,
    "iterator": lambda content: iter(_decoded_list(content)),
    "keys": _hashed(lambda items: dict.fromkeys(items).keys()),
    "values": lambda content: dict(enumerate(_decoded_list(content))).values(),
    "items": lambda content: _KINDS["dict"](content).items(),
}
"""{kind: decoder of its content}"""
