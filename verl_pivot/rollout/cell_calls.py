"""CellCalls: calls that one cell makes of the host's functions -> their replies, records, and the submitted answer."""

import json
from collections.abc import Iterable

from verl_pivot.data.rollout_records import CallRecord, CallStatus
from verl_pivot.errors import ConfigError, SandboxRequestError, ToolBugError, ToolFailureError
from verl_pivot.sandbox.host_functions import HostFunction, HostReply
from verl_pivot.tools.calls import CallOutcome, Toolbox
from verl_pivot.types import ErrorKind, Json, JsonObject, ToolCall

SUBMIT = "submit_final_answer"
_OWN_NAMES = frozenset({SUBMIT, "notepad", "Notepad"})
MAX_ARGUMENT_CHARACTERS = 32 * 1024
"""Most characters of the arguments of one call as JSON: the policy's code makes them, and not the policy itself, whose
turns are limited."""
SUBMIT_FUNCTION = HostFunction(
    name=SUBMIT,
    description="Submit the answer of the task, which ends the task; only the first answer counts.",
    parameters={"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
)


class CellCalls:
    """Answers the calls of one cell, and keeps their records.

    The answer of the task is kept here, outside of the sandbox, and never read from text that a cell prints.
    """

    def __init__(self, toolbox: Toolbox, turn: int, answer: str | None = None) -> None:
        """Keep what calls need.

        Args:
            toolbox: Tools of the rollout.
            turn: Index of the step, from 0.
            answer: Answer that was submitted before; None if there is none.
        """
        self.answer = answer
        """The first answer that was submitted; None if there is none."""
        self.records: list[CallRecord] = []
        self._toolbox = toolbox
        self._turn = turn

    async def answer_call(self, name: str, arguments: JsonObject) -> HostReply:
        """Run one call.

        Raises:
            ToolFailureError: If the tool failed, through no fault of the policy.
        """
        length = len(json.dumps(arguments, ensure_ascii=False))
        if length > MAX_ARGUMENT_CHARACTERS:
            return self._refuse(name, f"its arguments have {length} characters, at most {MAX_ARGUMENT_CHARACTERS}")
        if name == SUBMIT:
            return self._submit(arguments)
        outcome = await self._toolbox.run_one(ToolCall(name=name, arguments=arguments), 0)
        self.records.append(_record(outcome, self._turn))
        if outcome.observation is None:
            raise (ToolBugError if outcome.is_bug else ToolFailureError)(outcome.failure)
        is_error = outcome.observation.error is not None
        return HostReply(error=outcome.observation.text) if is_error else HostReply(value=outcome.observation.text)

    def _refuse(self, name: str, problem: str) -> HostReply:
        """Refuse a call whose arguments are too long to be kept."""
        status, kind = CallStatus.TOOL_ERROR, ErrorKind.INVALID_ARGUMENT
        self.records.append(CallRecord(turn=self._turn, name=name, arguments=None, status=status, error_kind=kind))
        return HostReply(error=f"{name}() was not called: {problem} are allowed")

    def _submit(self, arguments: JsonObject) -> HostReply:
        answer = arguments.get("answer")
        problem, kind = self._problem(answer)
        status = CallStatus.TOOL_ERROR if problem else CallStatus.OK
        self.records.append(
            CallRecord(turn=self._turn, name=SUBMIT, arguments=arguments, status=status, error_kind=kind)
        )
        if problem:
            return HostReply(error=problem)
        self.answer = str(answer)
        return HostReply(value="submitted")

    def _problem(self, answer: Json) -> tuple[str, ErrorKind | None]:
        """Why an answer is not taken, and the kind of the mistake; "" and None if it is taken."""
        if self.answer is not None:
            return f"an answer was submitted already, and the first one counts: {self.answer!r:.200}", ErrorKind.REFUSED
        if not isinstance(answer, str):
            kind = type(answer).__name__
            return f"the answer must be text (str), got {kind}; nothing was submitted", ErrorKind.INVALID_ARGUMENT
        if not answer.strip():
            return "the answer is empty; nothing was submitted", ErrorKind.INVALID_ARGUMENT
        try:
            answer.encode()
        except UnicodeEncodeError:
            return "the answer is not valid Unicode; nothing was submitted", ErrorKind.INVALID_ARGUMENT
        return "", None


def functions_of(schemas: Iterable[JsonObject]) -> list[HostFunction]:
    """Functions that stand for tools in a notebook, and the one that submits the answer.

    Args:
        schemas: Schemas of the tools, in OpenAI's form.

    Raises:
        ConfigError: If a tool cannot be a function there.
    """
    functions = [schema["function"] for schema in schemas]
    return [*(_function(each) for each in functions if isinstance(each, dict)), SUBMIT_FUNCTION]


def _function(schema: JsonObject) -> HostFunction:
    name, parameters = str(schema["name"]), schema.get("parameters")
    if name in _OWN_NAMES:
        raise ConfigError(f"a tool is called {name!r}, a name that the notebook itself uses: rename the tool")
    try:
        return HostFunction(
            name=name,
            description=str(schema.get("description") or ""),
            parameters=parameters if isinstance(parameters, dict) else {},
        )
    except SandboxRequestError as error:
        raise ConfigError(f"tool {name!r} cannot be a function in a notebook ({error}): rename the tool") from error


def _record(outcome: CallOutcome, turn: int) -> CallRecord:
    """Record of a call, without tokens: its text goes to the cell, and not into the policy's context."""
    call, observation = outcome.call, outcome.observation
    assert isinstance(call, ToolCall), call
    status = CallStatus.OK
    if observation is None:
        status = CallStatus.SYSTEM_FAILURE
    elif observation.error is not None:
        status = CallStatus.TOOL_ERROR
    return CallRecord(
        turn=turn,
        name=call.name,
        arguments=call.arguments,
        status=status,
        error_kind=None if observation is None else observation.error,
        seconds=round(outcome.seconds, 6),
        detail=outcome.failure,
    )
