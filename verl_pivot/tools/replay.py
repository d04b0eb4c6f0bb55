"""Recorded calls and their results -> a backend for tools that exist no more: what was recorded, or a fixed error."""

from collections.abc import Mapping
from dataclasses import dataclass

from verl_pivot.data.storage import as_list, as_object, decode_json
from verl_pivot.errors import DataError
from verl_pivot.tools.contract import ErrorKind, Observation, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import Json, JsonObject, ToolCall
from verl_pivot.verifiers.functional_calls import Rules, difference
from verl_pivot.verifiers.json_values import is_too_deep

NOT_RECORDED = "nothing is recorded for this call"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    call: ToolCall
    result: str


def parse_recording(text: str) -> tuple[RecordedCall, ...]:
    """Read a row's column `recording`: a JSON list of {"name", "arguments", "result"}.

    Raises:
        DataError: If it is none.
    """
    return tuple(_parse_call(as_object(item, "a recorded call")) for item in as_list(decode_json(text), "recording"))


def _parse_call(item: Mapping[str, Json]) -> RecordedCall:
    match item:
        case {"name": str(name), "arguments": dict(arguments), "result": str(result)}:
            return RecordedCall(ToolCall(name=name, arguments=arguments), result)
    raise DataError(f'a recorded call needs "name", "arguments" (object) and "result" (text), got {sorted(item)}')


class ReplayTool:
    """One tool of a row, answered from what was recorded: the first call that is functionally equal."""

    retries = 0
    timeout_seconds = 60.0
    tells_timeouts = False

    def __init__(self, schema: JsonObject, name: str, recording: tuple[RecordedCall, ...]) -> None:
        self.schema = schema
        self._name = name
        function = as_object(schema["function"], "a function")
        self._parameters = as_object(function.get("parameters") or {}, "parameters")
        self._recording = [recorded for recorded in recording if recorded.call.name == name]

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        call = ToolCall(name=self._name, arguments=arguments)
        if not is_too_deep(arguments):
            for recorded in self._recording:
                if difference(call, recorded.call, self._parameters, Rules()) is None:
                    return Observation(recorded.result)
        raise ToolError(NOT_RECORDED, ErrorKind.NOT_RECORDED)
