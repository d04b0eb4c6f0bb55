"""A Python function -> a Tool: its schema from the signature, its result as text."""

import asyncio
import inspect
import json
import threading
from collections.abc import Callable
from typing import Any, get_type_hints

import pydantic

from verl_pivot.errors import ConfigError, ToolFailureError
from verl_pivot.tools.contract import ErrorKind, Observation, ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject, ToolCall

_MAX_DETAIL = 500


class FunctionTool:
    """Any function, async or not; one that blocks runs in a thread of its own and holds nobody else up.

    The schema comes from the type hints, descriptions from the docstring and from
    `Annotated[int, pydantic.Field(description=...)]`. A parameter of type `Workspace` is filled in and stays hidden.

    Raises (at a call):
        ToolError: If the function raises it or a ValueError.
        ToolFailureError: If it raises anything else, or returns neither text nor JSON nor an Observation.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_seconds: float = 60.0,
        tells_timeouts: bool = False,
        retries: int = 0,
    ) -> None:
        self._function = function
        self._name = name or function.__name__
        self.timeout_seconds = timeout_seconds
        self.tells_timeouts = tells_timeouts
        self.retries = retries
        self._arguments, self._workspace_parameter = _arguments_model(function, self._name)
        parameters = self._arguments.model_json_schema()
        parameters.pop("title", None)
        for value in parameters.get("properties", {}).values():
            value.pop("title", None)
        about = description or (inspect.getdoc(function) or "").partition("\n\n")[0]
        self.schema: JsonObject = {
            "type": "function",
            "function": {"name": self._name, "description": about, "parameters": parameters},
        }

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        try:
            checked = self._arguments.model_validate(arguments)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ToolError(f"{place}: {first['msg']}", ErrorKind.INVALID_ARGUMENT) from error
        values = {name: getattr(checked, name) for name in checked.model_fields_set}
        if self._workspace_parameter is not None:
            values[self._workspace_parameter] = workspace
        return await _observed(self._function, values, self._name)


class BackendTool:
    """One tool of a row, whose calls a function answers: `async def backend(call: ToolCall, workspace: Workspace)`.

    It may block, raise and return as a `FunctionTool` may.
    """

    retries = 0
    tells_timeouts = False

    def __init__(self, schema: JsonObject, name: str, backend: Callable[..., Any], timeout_seconds: float) -> None:
        self.schema = schema
        self.timeout_seconds = timeout_seconds
        self._name = name
        self._backend = backend

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        call = ToolCall(name=self._name, arguments=arguments)
        return await _observed(self._backend, {"call": call, "workspace": workspace}, self._name)


async def _observed(function: Callable[..., Any], values: dict[str, Any], name: str) -> Observation:
    """What a function gives back, and whose fault it is if it does not."""
    try:
        result = await (function(**values) if inspect.iscoroutinefunction(function) else in_thread(function, values))
    except ValueError as error:
        raise error if isinstance(error, ToolError) else ToolError(str(error)) from error
    except Exception as error:  # the user's own code: whatever it is, it is no reward
        detail = f"{type(error).__name__}: {error}"[:_MAX_DETAIL]
        raise ToolFailureError(f"tool {name} raised {detail}") from error
    return result if isinstance(result, Observation) else Observation(_as_text(result, name))


def _arguments_model(function: Callable[..., Any], name: str) -> tuple[type[pydantic.BaseModel], str | None]:
    """The function's parameters as a model, and the one that takes the workspace."""
    hints = get_type_hints(function, include_extras=True)
    workspace, fields = None, {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name}: parameter {parameter.name!r} cannot be given by name; give it one")
        if parameter.name not in hints:
            raise ConfigError(f"tool {name}: parameter {parameter.name!r} needs a type hint, for the schema")
        if hints[parameter.name] is Workspace:
            workspace = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    config = pydantic.ConfigDict(extra="forbid")
    try:
        return pydantic.create_model(name, __config__=config, **fields), workspace  # type: ignore[call-overload]
    except pydantic.errors.PydanticSchemaGenerationError as error:
        raise ConfigError(f"tool {name}: a parameter's type has no JSON schema: {error.message}") from error


def _as_text(result: object, name: str) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        kind = type(result).__name__
        raise ToolFailureError(f"tool {name} returned {kind} ({error}); return text, or what JSON can hold") from error


async def in_thread(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """The function's result; a thread that never ends keeps neither the loop nor the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()

    def deliver(set_outcome: Callable[[Any], None], outcome: object) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            result = function(**values)
        except BaseException as error:  # noqa: BLE001  it is raised where the call waits
            outcome = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            told = (future.set_exception, outcome)
        else:
            told = (future.set_result, result)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, *told)

    threading.Thread(target=run, daemon=True).start()
    return await future
