"""ToolRL's graded reward for calls: parts for tool names, argument names and argument values.

Source: arXiv:2504.13958, `rlla.py`. `R = 6 * S / S_max - 3` lies in [-3, 3]; a verdict's score is `S / S_max`, from
which R follows. As in the released code, true equals 1. A policy may learn to be content with the reward of partly
right calls, so use this rule for comparison, or with care.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from verl_pivot.types import ToolCall


def share(calls: Sequence[ToolCall], expert_calls: Sequence[ToolCall]) -> float:
    """S / S_max, in [0, 1]; 1 for calls that are fully equal.

    Args:
        calls: [num_calls] calls of the policy.
        expert_calls: [num_expert_calls] calls of the expert, not empty.
    """
    max_credit = 1.0 + sum(1.0 + len(expert.arguments) for expert in expert_calls)
    credit = _jaccard((call.name for call in calls), (expert.name for expert in expert_calls))
    unpaired = list(calls)
    for expert in expert_calls:
        of_same_tool = (call for call in unpaired if call.name == expert.name)
        partner = max(of_same_tool, key=lambda call: _credit(call, expert), default=None)
        if partner is not None and _credit(partner, expert) > 0.0:
            unpaired.remove(partner)
            credit += _credit(partner, expert)
    return credit / max_credit


def reward(share: float) -> float:
    """ToolRL's R_correct in [-3, 3], from a share in [0, 1]."""
    return 6.0 * share - 3.0


def _credit(call: ToolCall, expert: ToolCall) -> float:
    given = call.arguments
    num_equal = sum(name in given and given[name] == value for name, value in expert.arguments.items())
    return _jaccard(given, expert.arguments) + num_equal


def _jaccard(one: Iterable[str], other: Iterable[str]) -> float:
    """Jaccard similarity of two multisets, in [0, 1]; 1 for two empty ones."""
    first, second = Counter(iter(one)), Counter(iter(other))
    union = (first | second).total()
    return (first & second).total() / union if union else 1.0
