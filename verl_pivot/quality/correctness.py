"""Filter `correctness`: each call names a known tool, has arguments that the tool's schema allows, and has a result."""

from fractions import Fraction
from typing import Literal

from pydantic import Field

from verl_pivot.data.answered_calls import AnsweredCall, answered_calls
from verl_pivot.data.json_values import encode_json
from verl_pivot.data.tool_schemas import schemas_by_name
from verl_pivot.quality.contract import FilterOptions, Finding, TrajectoryFilter, shortened
from verl_pivot.quality.error_results import ERROR_PATTERN, Pattern, reports_error
from verl_pivot.quality.registry import register_filter
from verl_pivot.types import Role, Trajectory


class CorrectnessOptions(FilterOptions):
    without_tools: Literal["drop", "keep"] = "drop"
    """What to do with a trajectory that has calls but no tool schemas to check them by."""
    check_arguments: bool = True
    """Whether the arguments of every call must fit the tool's schema."""
    unnamed_arguments: Literal["drop", "keep"] = "drop"
    """What to do about arguments that `properties` does not name; JSON schema itself allows them by default."""
    check_results: bool = True
    """Whether every call must have a result, except calls of a turn that ends the trajectory."""
    last_call_fails: Literal["drop", "keep"] = "keep"
    """What to do with a trajectory whose last result reports an error."""
    max_failed_share: float | None = Field(default=None, ge=0.0, le=1.0)
    """Largest share of answered calls whose result reports an error; None allows any."""
    error_pattern: Pattern = ERROR_PATTERN
    """Regular expression that the text of a failed call's result matches."""


@register_filter("correctness", options=CorrectnessOptions)
class Correctness(TrajectoryFilter):
    def __init__(self, options: CorrectnessOptions) -> None:
        self._options = options

    def judge(self, trajectory: Trajectory) -> Finding | None:
        calls = answered_calls(trajectory.messages)
        if calls and not trajectory.tools:
            if self._options.without_tools == "drop":
                return Finding(reason="no_schemas", detail=f"{len(calls)} calls, but no tool schema to check them with")
        elif finding := self._first_bad_call(calls, trajectory):
            return finding
        if self._options.check_results and (finding := _first_without_result(calls, trajectory)):
            return finding
        return self._failures(calls)

    def _first_bad_call(self, calls: list[AnsweredCall], trajectory: Trajectory) -> Finding | None:
        schemas = schemas_by_name(encode_json(list(trajectory.tools))) if calls else {}
        for answered in calls:
            call, place = answered.call, f"turn {answered.turn}, {answered.call.name}"
            schema = schemas.get(call.name)
            if schema is None:
                return Finding(reason="unknown_tool", detail=f"{place}: no tool has this name")
            if self._options.check_arguments and (problem := schema.problem(call.arguments)):
                reason = "unusable_schema" if problem.is_unusable else "bad_arguments"
                return Finding(reason=reason, detail=f"{place}: {shortened(problem.detail)}")
            unnamed = schema.first_unknown(call.arguments)
            if unnamed is not None and self._options.unnamed_arguments == "drop":
                return Finding(reason="unnamed_argument", detail=shortened(f"{place}: {unnamed} is not in its schema"))
        return None

    def _failures(self, calls: list[AnsweredCall]) -> Finding | None:
        limit = self._options.max_failed_share
        if limit is None and self._options.last_call_fails == "keep":
            return None
        answered = [call for call in calls if call.result is not None]
        failed = [call for call in answered if call.result and reports_error(call.result, self._options.error_pattern)]
        if self._options.last_call_fails == "drop" and failed and failed[-1] is answered[-1]:
            return Finding(reason="last_call_fails", detail=_quote(failed[-1]))
        if limit is not None and len(failed) > Fraction(str(limit)) * len(answered):
            return Finding(
                reason="too_many_failed_calls",
                detail=f"{len(failed)} of {len(answered)} calls; {_quote(failed[0])}",
            )
        return None


def _quote(answered: AnsweredCall) -> str:
    assert answered.result is not None, answered
    return f"turn {answered.turn}, {answered.call.name}: {shortened(answered.result.content)}"


def _first_without_result(calls: list[AnsweredCall], trajectory: Trajectory) -> Finding | None:
    last = trajectory.messages[-1] if trajectory.messages else None
    ends_in_call = last is not None and last.role is Role.ASSISTANT
    for answered in calls:
        is_end = ends_in_call and answered.position == len(trajectory.messages) - 1
        if answered.result is None and not is_end:
            detail = f"turn {answered.turn}, {answered.call.name}: no message answers it"
            return Finding(reason="no_result", detail=detail)
    return None
