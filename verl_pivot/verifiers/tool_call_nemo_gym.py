"""NeMo Gym's rule for calls, bug for bug, for comparison only: texts are equal if they share enough words.

Source: NeMo Gym 07d6b0d, single_step_tool_use_with_argument_comparison. Two texts of two or more words are equal if
`|shared words| / (words of both) >= threshold`; identical texts have 0.5. The rule is known to accept wrong calls.
Almost any text passes a threshold of 0.1; true passes for 1; an empty message passes for a message; with the published
defaults, calls in addition to the expert's cost nothing.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from verl_pivot.types import Json, ToolCall
from verl_pivot.validation import Options
from verl_pivot.verifiers.tool_call_functional import match_all
from verl_pivot.verifiers.verdicts import Reason


class NemoGymSwitches(Options):
    """Switches of NeMo Gym's rule, with its names and its defaults."""

    floating_point_comparison_threshold: Annotated[float, Field(ge=0.0)] = 1e-6
    """Absolute difference below which two numbers are equal, if both are written with a decimal point."""
    parallel_tool_call_rewarding: bool = False
    """Whether the number of calls counts; if not, calls in addition to the expert's cost nothing."""
    allow_subset: bool = False
    """Whether an action with fewer calls than the expert's may score above 0, if the number of calls counts."""
    allow_superset: bool = False
    """Whether an action with more calls than the expert's may score above 0, if the number of calls counts."""
    parallel_tool_call_reward_mode: Literal["binary_strict", "fractional", "f1"] = "binary_strict"
    """
    Score of calls that are partly right, if the number of calls counts.
    binary_strict: 0. fractional: the share of the needed calls that match. f1: 2 * matches / calls of both.
    """


def is_same_call(call: ToolCall, expert: ToolCall, threshold: float, switches: NemoGymSwitches) -> bool:
    """Whether both call the same tool with arguments that are equal by this rule."""
    if call.name != expert.name:
        return False
    return difference(call.arguments, expert.arguments, threshold, switches.floating_point_comparison_threshold) is None


def calls_score(
    calls: Sequence[ToolCall], expert_calls: Sequence[ToolCall], threshold: float, switches: NemoGymSwitches
) -> float:
    """Score in [0, 1] of an action's calls.

    Args:
        calls: [num_calls] calls of the policy, at least one.
        expert_calls: [num_expert_calls] calls of the expert, at least one.
        threshold: Smallest share of words at which two texts are equal.
        switches: The rule's switches.
    """
    partners = match_all(expert_calls, calls, lambda expert, call: is_same_call(call, expert, threshold, switches))
    num_matched = sum(partner is not None for partner in partners)
    num_calls, num_expert_calls = len(calls), len(expert_calls)
    if num_calls == num_expert_calls == 1 or not switches.parallel_tool_call_rewarding:
        return float(num_matched == num_expert_calls)
    is_admitted = switches.allow_subset if num_calls < num_expert_calls else switches.allow_superset
    if num_calls != num_expert_calls and not is_admitted:
        return 0.0
    if switches.parallel_tool_call_reward_mode == "f1":
        return 2 * num_matched / (num_calls + num_expert_calls)
    num_needed = min(num_calls, num_expert_calls) if switches.allow_subset else num_expert_calls
    share = num_matched / num_needed
    return share if switches.parallel_tool_call_reward_mode == "fractional" else float(share == 1.0)


def difference(actual: Json, expert: Json, threshold: float, float_threshold: float) -> Reason | None:
    """Reason why two values are not equal; None if they are."""
    if not isinstance(actual, type(expert)):
        return Reason.WRONG_TYPE
    if isinstance(expert, dict):
        assert isinstance(actual, dict), actual
        if actual.keys() != expert.keys():
            return Reason.MISSING_ARGUMENT if expert.keys() - actual.keys() else Reason.EXTRA_ARGUMENT
        found = (difference(actual[name], value, threshold, float_threshold) for name, value in expert.items())
        return next((reason for reason in found if reason is not None), None)
    if isinstance(expert, list):
        assert isinstance(actual, list), actual
        if len(actual) != len(expert):
            return Reason.WRONG_VALUE
        found = (difference(one, other, threshold, float_threshold) for one, other in zip(actual, expert, strict=True))
        return next((reason for reason in found if reason is not None), None)
    return None if _is_equal(actual, expert, threshold, float_threshold) else Reason.WRONG_VALUE


def _is_equal(actual: Json, expert: Json, threshold: float, float_threshold: float) -> bool:
    if isinstance(expert, float):
        assert isinstance(actual, float), actual
        return abs(actual - expert) < float_threshold
    if isinstance(expert, str):
        assert isinstance(actual, str), actual
        return _is_equal_text(actual, expert, threshold)
    return actual == expert


def _is_equal_text(actual: str, expert: str, threshold: float) -> bool:
    words, expert_words = Counter(actual.lower().split()), Counter(expert.lower().split())
    if words.total() < 2 or expert_words.total() < 2:
        return actual == expert
    return (words & expert_words).total() / (words.total() + expert_words.total()) >= threshold
