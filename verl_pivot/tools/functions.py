"""Python function -> Tool: its result becomes text, its exception a mistake of the policy or a system failure."""

import asyncio
import inspect
import json
import threading
from collections.abc import Callable
from typing import Any

from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import PivotError, SandboxRequestError, ToolBugError, ToolFailureError
from verl_pivot.tools.contract import CallPolicy, Observation, ToolError
from verl_pivot.tools.signatures import read_signature
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import JsonObject, ToolCall
from verl_pivot.user_code import code_error, ends_this_task, named


class FunctionTool:
    """A function as a tool, async or not. A function that blocks runs in its own thread and delays no other rollout.

    The schema comes from the type hints, descriptions from the docstring and from
    `Annotated[int, pydantic.Field(description=...)]`. A parameter of type `Workspace` is filled in and stays hidden.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        policy: CallPolicy | None = None,
    ) -> None:
        """Raises ConfigError if the signature cannot become a schema."""
        self._function = function
        self._signature = read_signature(function, name=name, description=description)
        self.schema = self._signature.schema
        self.policy = policy or CallPolicy()

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        values = self._signature.values(arguments, workspace)
        return await observe(self._function, values, f"tool {self._signature.name}")


class BackendTool:
    """Tool that a row brings; a function runs its calls: `async def backend(call: ToolCall, workspace: Workspace)`.

    The function may block, raise and return the same as the function of a `FunctionTool`.
    """

    def __init__(self, schema: JsonObject, backend: Callable[..., Any], policy: CallPolicy) -> None:
        self.schema = schema
        self.policy = policy
        self._name = name_of(schema)
        self._backend = backend

    async def call(self, arguments: JsonObject, workspace: Workspace) -> Observation:
        call = ToolCall(name=self._name, arguments=arguments)
        return await observe(self._backend, {"call": call, "workspace": workspace}, f"tool {self._name}")


async def observe(function: Callable[..., Any], values: dict[str, Any], place: str) -> Observation:
    """Call a user's function.

    Args:
        function: The function, async or not.
        values: Keyword arguments of the call.
        place: Description of the function for messages, such as "tool add".

    Raises:
        ToolError: If the function raises it or a ValueError.
        SandboxRequestError: If it asks the sandbox for something that is not allowed.
        ToolFailureError: If it raises anything else, or returns neither an Observation nor text nor JSON.
    """
    try:
        result = await (function(**values) if inspect.iscoroutinefunction(function) else in_thread(function, values))
    except (ToolError, SandboxRequestError):
        raise
    except (PivotError, OSError) as error:  # a system that the tool needs; a ConfigError is a ValueError, too
        raise ToolFailureError(f"{place} raised {named(error)}") from error
    except ValueError as error:
        raise ToolError(str(error)) from error
    except BaseException as error:  # the user's own code: whatever it raises never becomes a reward
        if ends_this_task(error):
            raise
        raise ToolBugError(str(code_error(place, error))) from error
    return result if isinstance(result, Observation) else Observation(_as_text(result, place))


def _as_text(result: object, place: str) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        kind = type(result).__name__
        raise ToolBugError(f"{place} returned {kind} ({error}); return text or a JSON value") from error


async def in_thread(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Call a blocking function in a daemon thread, which keeps neither the event loop nor the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()

    def deliver(set_outcome: Callable[[Any], None], outcome: object) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            result = function(**values)
        except BaseException as error:  # noqa: BLE001  raised again where the call waits
            exception = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            delivery = (future.set_exception, exception)
        else:
            delivery = (future.set_result, result)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, *delivery)

    threading.Thread(target=run, daemon=True).start()
    return await future
