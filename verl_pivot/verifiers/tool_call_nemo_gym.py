"""NeMo Gym's rule for calls, bug for bug: texts are equal if they share enough words. For comparison only.

Source: NeMo Gym 07d6b0d, single_step_tool_use_with_argument_comparison. A text of two or more words is equal if
`|shared words| / (words of both) >= threshold`; identical texts have 0.5. Known to pay wrong calls: almost any text
passes 0.1; true passes for 1; an empty message passes for a message.
"""

from collections import Counter

from verl_pivot.types import Json
from verl_pivot.verifiers.verdicts import Reason

FLOAT_TOLERANCE = 1e-6


def difference(actual: Json, expert: Json, threshold: float) -> Reason | None:
    """Why two values are not equal; None if they are."""
    if not isinstance(actual, type(expert)):
        return Reason.WRONG_TYPE
    if isinstance(expert, dict):
        assert isinstance(actual, dict), actual
        if actual.keys() != expert.keys():
            return Reason.MISSING_ARGUMENT if expert.keys() - actual.keys() else Reason.EXTRA_ARGUMENT
        found = (difference(actual[name], value, threshold) for name, value in expert.items())
        return next((reason for reason in found if reason is not None), None)
    if isinstance(expert, list):
        assert isinstance(actual, list), actual
        if len(actual) != len(expert):
            return Reason.WRONG_VALUE
        found = (difference(one, other, threshold) for one, other in zip(actual, expert, strict=True))
        return next((reason for reason in found if reason is not None), None)
    return None if _is_equal(actual, expert, threshold) else Reason.WRONG_VALUE


def _is_equal(actual: Json, expert: Json, threshold: float) -> bool:
    if isinstance(expert, float):
        assert isinstance(actual, float), actual
        return abs(actual - expert) < FLOAT_TOLERANCE
    if isinstance(expert, str):
        assert isinstance(actual, str), actual
        return _is_equal_text(actual, expert, threshold)
    return actual == expert


def _is_equal_text(actual: str, expert: str, threshold: float) -> bool:
    words, expert_words = Counter(actual.lower().split()), Counter(expert.lower().split())
    if words.total() < 2 or expert_words.total() < 2:
        return actual == expert
    return (words & expert_words).total() / (words.total() + expert_words.total()) >= threshold
