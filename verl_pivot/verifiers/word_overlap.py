"""NVIDIA's published comparison of calls, bug for bug, for comparison with it and with profiles made by it.

Source: NeMo Gym 07d6b0d, single_step_tool_use_with_argument_comparison. A text of two or more words is equal if it
shares enough words: `|shared words| / (words of both) >= threshold`, which is 0.5 for identical texts. What we know to
leak: almost any text passes 0.1; true passes for 1; an empty message passes for a message.
"""

from collections import Counter

from verl_pivot.types import Json
from verl_pivot.verifiers.reasons import Reason

FLOAT_TOLERANCE = 1e-6


def difference(actual: Json, expected: Json, threshold: float) -> Reason | None:
    """None if they count as equal."""
    if not isinstance(actual, type(expected)):
        return Reason.WRONG_TYPE
    if isinstance(expected, dict):
        assert isinstance(actual, dict), actual
        if actual.keys() != expected.keys():
            return Reason.MISSING_ARGUMENT if expected.keys() - actual.keys() else Reason.EXTRA_ARGUMENT
        found = (difference(actual[name], value, threshold) for name, value in expected.items())
        return next((reason for reason in found if reason is not None), None)
    if isinstance(expected, list):
        assert isinstance(actual, list), actual
        if len(actual) != len(expected):
            return Reason.WRONG_VALUE
        found = (difference(given, wanted, threshold) for given, wanted in zip(actual, expected, strict=True))
        return next((reason for reason in found if reason is not None), None)
    return None if _is_equal(actual, expected, threshold) else Reason.WRONG_VALUE


def _is_equal(actual: Json, expected: Json, threshold: float) -> bool:
    if isinstance(expected, float):
        assert isinstance(actual, float), actual
        return abs(actual - expected) < FLOAT_TOLERANCE
    if isinstance(expected, str):
        assert isinstance(actual, str), actual
        return _is_equal_text(actual, expected, threshold)
    return actual == expected


def _is_equal_text(actual: str, expected: str, threshold: float) -> bool:
    words, wanted = Counter(actual.lower().split()), Counter(expected.lower().split())
    if words.total() < 2 or wanted.total() < 2:
        return actual == expected
    return (words & wanted).total() / (words.total() + wanted.total()) >= threshold
