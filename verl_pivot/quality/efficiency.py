"""Filter `efficiency`: not too many calls, and few that only repeat an earlier call or report an error."""

from collections.abc import Sequence
from fractions import Fraction

from pydantic import Field

from verl_pivot.data.answered_calls import AnsweredCall, answered_calls
from verl_pivot.data.json_values import encode_json
from verl_pivot.quality.contract import FilterOptions, Finding, TrajectoryFilter, shortened
from verl_pivot.quality.error_results import ERROR_PATTERN, Pattern, reports_error
from verl_pivot.quality.registry import register_filter
from verl_pivot.types import Trajectory


class EfficiencyOptions(FilterOptions):
    max_calls: int | None = Field(default=None, ge=0)
    """Maximum number of calls in a trajectory; None allows any number."""
    max_repeated_calls: int | None = Field(default=None, ge=0)
    """Maximum number of calls with the name, arguments and result of an earlier call; None allows any number."""
    max_wasted_share: float | None = Field(default=None, ge=0.0, le=1.0)
    """Largest share of calls that are repeated or whose result reports an error; None allows any."""
    error_pattern: Pattern = ERROR_PATTERN
    """Regular expression that the text of a failed call's result matches."""


@register_filter("efficiency", options=EfficiencyOptions)
class Efficiency(TrajectoryFilter):
    def __init__(self, options: EfficiencyOptions) -> None:
        self._options = options

    def judge(self, trajectory: Trajectory) -> Finding | None:
        options = self._options
        calls = answered_calls(trajectory.messages)
        if options.max_calls is not None and len(calls) > options.max_calls:
            return Finding(
                reason="too_many_calls", detail=f"{len(calls)} calls, at most {options.max_calls} are allowed"
            )
        repeated = repeated_calls(calls)
        if options.max_repeated_calls is not None and len(repeated) > options.max_repeated_calls:
            detail = shortened(f"{len(repeated)} of {len(calls)} calls, first {_place(repeated[0])}")
            return Finding(reason="repeated_calls", detail=detail)
        if options.max_wasted_share is None:
            return None
        failed = [call for call in calls if call.result and reports_error(call.result, options.error_pattern)]
        wasted = [call for call in calls if any(call is other for other in (*repeated, *failed))]
        if len(wasted) <= Fraction(str(options.max_wasted_share)) * len(calls):
            return None
        detail = f"{len(wasted)} of {len(calls)} calls: {len(repeated)} repeated, {len(failed)} failed, first "
        return Finding(reason="wasted_calls", detail=shortened(detail + _place(wasted[0])))


def repeated_calls(calls: Sequence[AnsweredCall]) -> list[AnsweredCall]:
    """[num_repeated] calls that have the name, arguments and result of an earlier call."""
    seen: set[tuple[str, str, str]] = set()
    repeated = []
    for call in calls:
        if call.result is not None:
            key = (call.call.name, encode_json(call.call.arguments, sort_keys=True), call.result.content)
            if key in seen:
                repeated.append(call)
            seen.add(key)
    return repeated


def _place(call: AnsweredCall) -> str:
    return f"turn {call.turn}, {call.call.name}"
