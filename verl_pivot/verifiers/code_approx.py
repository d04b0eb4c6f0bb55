"""pytest.approx for checks outside the sandbox: expected value -> an object that equals every value near it."""

import math
from collections.abc import Mapping
from typing import Any

_REL, _ABS = 1e-6, 1e-12
"""Default relative and absolute tolerance of pytest."""


class Approx:
    """Equals a number near the expected one, and a list, tuple or dictionary of such numbers.

    As in pytest, a test that names only `abs` has no relative tolerance, and infinity equals only itself.
    """

    __hash__ = None  # type: ignore[assignment]  # it equals many values

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: Any = False) -> None:
        if any(each is not None and not (isinstance(each, int | float) and each >= 0) for each in (rel, abs)):
            raise ValueError("a tolerance that is below 0 or not a number")
        self._expected = expected
        self._rel = _REL if rel is None and abs is None else (rel or 0.0)
        self._abs = _ABS if abs is None else abs
        self._is_nan_ok = nan_ok is True

    def __eq__(self, value: object) -> bool:
        expected = self._expected
        if isinstance(expected, Mapping):
            is_alike = isinstance(value, Mapping) and value.keys() == expected.keys()
            return is_alike and all(self._is_near(value[key], each) for key, each in expected.items())  # type: ignore[index]  # a Mapping
        if isinstance(expected, list | tuple):
            is_alike = isinstance(value, list | tuple) and len(value) == len(expected)
            return is_alike and all(map(self._is_near, value, expected))  # type: ignore[call-overload]  # a sequence
        return self._is_near(value, expected)

    def _is_near(self, value: Any, expected: Any) -> bool:
        if isinstance(expected, bool) or not _are_numbers(value, expected):
            return type(value) is type(expected) and bool(value == expected)
        if value == expected:
            return True
        if value != value and expected != expected:
            return self._is_nan_ok
        if math.isinf(expected):
            return False
        return bool(abs(value - expected) <= max(self._abs, self._rel * abs(expected)))


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(each, int | float) for each in values)
