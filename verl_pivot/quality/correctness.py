"""Filter `correctness`: calls are of known tools, with arguments that their schemas allow, and have results."""

import re
from functools import lru_cache
from typing import Literal

from jsonschema import Draft202012Validator
from pydantic import Field
from referencing import Registry
from referencing.exceptions import Unresolvable

from verl_pivot.data.storage import as_object, decode_json, encode_json
from verl_pivot.data.tools import name_of
from verl_pivot.quality.calls import ERROR_PATTERN, AnsweredCall, ErrorSigns, Pattern, answered_calls
from verl_pivot.quality.contract import FilterOptions, Finding, TrajectoryFilter, shortened
from verl_pivot.quality.registry import register_filter
from verl_pivot.types import JsonObject, Role, Trajectory


class CorrectnessOptions(FilterOptions):
    without_tools: Literal["drop", "keep"] = "drop"
    """What to do with calls where the trajectory brings no schema at all, so that none can be checked."""
    check_arguments: bool = True
    unnamed_arguments: Literal["drop", "keep"] = "drop"
    """Arguments that `properties` does not name; JSON schema allows them unless additionalProperties is false."""
    check_results: bool = True
    """Every call has its result, except those of a turn that ends the trajectory."""
    last_call_fails: Literal["drop", "keep"] = "keep"
    """Where the last result reports an error."""
    max_failed_share: float | None = Field(default=None, ge=0.0, le=1.0)
    """Of the answered calls."""
    error_pattern: Pattern = ERROR_PATTERN


@register_filter("correctness", options=CorrectnessOptions)
class Correctness(TrajectoryFilter):
    def __init__(self, options: CorrectnessOptions) -> None:
        self._options = options
        self._signs = ErrorSigns(options.error_pattern)

    def judge(self, trajectory: Trajectory) -> Finding | None:
        calls = answered_calls(trajectory.messages)
        if calls and not trajectory.tools:
            if self._options.without_tools == "drop":
                return Finding(reason="no_schemas", detail=f"{len(calls)} calls, and no schema to check them by")
        elif finding := self._first_bad_call(calls, trajectory):
            return finding
        if self._options.check_results and (finding := _first_without_result(calls, trajectory)):
            return finding
        return self._failures(calls)

    def _first_bad_call(self, calls: list[AnsweredCall], trajectory: Trajectory) -> Finding | None:
        schemas = _schemas_of(encode_json(list(trajectory.tools))) if calls else {}
        for answered in calls:
            call, place = answered.call, f"turn {answered.turn}, {answered.call.name}"
            schema = schemas.get(call.name)
            if schema is None:
                return Finding(reason="unknown_tool", detail=f"{place}: no tool has this name")
            if self._options.check_arguments and (problem := schema.problem(call.arguments)):
                return Finding(reason=problem.reason, detail=f"{place}: {problem.detail}")
            unnamed = schema.unnamed(call.arguments)
            if unnamed is not None and self._options.unnamed_arguments == "drop":
                return Finding(reason="unnamed_argument", detail=shortened(f"{place}: {unnamed} is not in its schema"))
        return None

    def _failures(self, calls: list[AnsweredCall]) -> Finding | None:
        limit = self._options.max_failed_share
        if limit is None and self._options.last_call_fails == "keep":
            return None
        answered = [call for call in calls if call.result is not None]
        failed = [call for call in answered if call.result is not None and self._signs.are_in(call.result)]
        if self._options.last_call_fails == "drop" and failed and failed[-1] is answered[-1]:
            return Finding(reason="last_call_fails", detail=_quote(failed[-1]))
        if limit is not None and len(failed) > limit * len(answered):
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


class _Schema:
    """A tool's parameters; references are resolved inside of them alone, never over the network."""

    def __init__(self, parameters: JsonObject) -> None:
        self._validator = Draft202012Validator(parameters, registry=Registry())
        named = parameters.get("properties")
        is_open = "additionalProperties" in parameters or "patternProperties" in parameters
        self._named = set(named) if isinstance(named, dict) and not is_open else None

    def problem(self, arguments: JsonObject) -> Finding | None:
        try:
            error = next(self._validator.iter_errors(arguments), None)
        except (Unresolvable, RecursionError, re.error, ArithmeticError) as error:
            return Finding(reason="unusable_schema", detail=shortened(f"its schema cannot be applied: {error!r}"))
        if error is None:
            return None
        return Finding(reason="bad_arguments", detail=shortened(f"{error.json_path}: {error.message}"))

    def unnamed(self, arguments: JsonObject) -> str | None:
        """The first argument that the schema does not know; None where it leaves names open."""
        return None if self._named is None else next((name for name in arguments if name not in self._named), None)


@lru_cache(maxsize=512)  # most trajectories of a file share their tools
def _schemas_of(tools: str) -> dict[str, _Schema]:
    schemas = {}
    listed = decode_json(tools)
    assert isinstance(listed, list), tools
    for tool in (as_object(item, "a tool") for item in listed):
        parameters = as_object(tool["function"], "a function").get("parameters", {})
        schemas[name_of(tool)] = _Schema(as_object(parameters, "parameters"))
    return schemas
