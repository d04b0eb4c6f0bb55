"""Recorded calls and their results -> a Tool that gives the recorded result again, or a fixed error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_pivot.data.json_values import as_list, as_object, decode_json, is_too_deep
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import DataError
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, Json, JsonObject, ToolCall
from verl_pivot.verifiers.tool_call_functional import EqualityRules, find_difference

NOT_RECORDED = "nothing is recorded for this call"
"""Observation of a call without a recorded result."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call of a recorded trajectory, with its result."""

    call: ToolCall
    result: str
    """Text that the tool returned."""


def parse_recording(text: str) -> tuple[RecordedCall, ...]:
    """Read a row's column `recording`: a JSON list of {"name", "arguments", "result"}.

    Raises:
        DataError: If the text is not such a list.
    """
    return tuple(_parse_call(as_object(item, "a recorded call")) for item in as_list(decode_json(text), "recording"))


def _parse_call(item: Mapping[str, Json]) -> RecordedCall:
    match item:
        case {"name": str(name), "arguments": dict(arguments), "result": str(result)}:
            return RecordedCall(ToolCall(name=name, arguments=arguments), result)
    raise DataError(f'a recorded call needs "name", "arguments" (object) and "result" (text), got {sorted(item)}')


class ReplayTool:
    """Tool that a row brings; it returns the result of the first recorded call with equal arguments.

    Arguments are compared as the verifier `tool_call` compares them.
    """

    policy = CallPolicy()

    def __init__(self, schema: JsonObject, recording: Sequence[RecordedCall]) -> None:
        self.schema = schema
        self._name = name_of(schema)
        function = as_object(schema["function"], "a function")
        self._parameters = as_object(function.get("parameters") or {}, "parameters")
        self._recording = [recorded for recorded in recording if recorded.call.name == self._name]

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        call = ToolCall(name=self._name, arguments=arguments)
        if not is_too_deep(arguments):
            for recorded in self._recording:
                if find_difference(call, recorded.call, self._parameters, EqualityRules()) is None:
                    return Observation(recorded.result)
        raise ToolError(NOT_RECORDED, ErrorKind.NOT_RECORDED)
