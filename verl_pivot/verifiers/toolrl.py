"""ToolRL's graded reward for calls (arXiv:2504.13958, `rlla.py`): names, argument names and values, each in part.

`R = 6 * S / S_max - 3` in [-3, 3]; a verdict holds `S / S_max`, from which R follows. Pays for partly right calls, on
which a policy can live: use it to compare, or with care.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from verl_pivot.types import ToolCall
from verl_pivot.verifiers.json_values import equal


def share(calls: Sequence[ToolCall], expected: Sequence[ToolCall]) -> float:
    """S / S_max, in [0, 1]; 1 for calls that are fully equal.

    Args:
        calls: [num_calls]
        expected: [num_expected], not empty.
    """
    best = 1.0 + sum(1.0 + len(wanted.arguments) for wanted in expected)
    got = _jaccard((call.name for call in calls), (wanted.name for wanted in expected))
    left = list(calls)
    for wanted in expected:
        partner = max(
            (call for call in left if call.name == wanted.name), key=lambda call: _credit(call, wanted), default=None
        )
        if partner is not None:
            left.remove(partner)
            got += _credit(partner, wanted)
    return got / best


def reward(share: float) -> float:
    """R_correct, in [-3, 3]."""
    return 6.0 * share - 3.0


def _credit(call: ToolCall, wanted: ToolCall) -> float:
    given = call.arguments
    num_equal = sum(name in given and equal(given[name], value) for name, value in wanted.arguments.items())
    return _jaccard(given, wanted.arguments) + num_equal


def _jaccard(one: Iterable[str], other: Iterable[str]) -> float:
    """Of multisets; 1 for two empty ones."""
    first, second = Counter(iter(one)), Counter(iter(other))
    union = (first | second).total()
    return (first & second).total() / union if union else 1.0
