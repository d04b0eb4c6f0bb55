"""Environment `Arena`: tools that a row brings as Python code, and a reward for the questions that their calls solve.

The rows come from `verl-pivot synthesize arenas`. The code was written by a model, and runs only in the sandbox.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import Field, JsonValue, TypeAdapter

from verl_pivot.data.json_values import BadRowError, as_object, decode_json, encode_json, equal
from verl_pivot.errors import SandboxRequestError
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status
from verl_pivot.tools.contract import Environment, ToolError
from verl_pivot.types import ErrorKind, Json, JsonObject, Message, ToolCall, Verdict
from verl_pivot.validation import Options
from verl_pivot.verifiers.sandboxed import REASONS, execute
from verl_pivot.verifiers.verdicts import Reason, graded

ARENA = "arena"
"""Key of a row's metadata that holds the list of its tools."""
NO_RESULT, CALL_REFUSED = "no_result", "call_refused"
"""Failures of a call besides those of the program: it returned nothing that JSON can hold, or raised a ValueError."""
_TOOL, _CALL, _RESULT = "tool.py", "call.json", "result.json"
_LIMITS = Limits(
    wall_seconds=2.0, cpu_seconds=2, memory_bytes=256 * MIB, output_bytes=4096, num_processes=16, tmp_bytes=16 * MIB
)
_RUN = f"""import json
with open("{_TOOL}", encoding="utf-8") as file:
    source = file.read()
with open("{_CALL}", encoding="utf-8") as file:
    call = json.load(file)
names = {{"__name__": "tool"}}
exec(compile(source, "{_TOOL}", "exec"), names)
try:
    outcome = {{"value": names[call["name"]](**call["arguments"])}}
except ValueError as error:
    outcome = {{"refused": str(error)}}
with open("{_RESULT}", "w", encoding="utf-8") as file:
    json.dump(outcome, file, allow_nan=False)
"""


class ToolCode(Options):
    """A tool as Python code."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{1,47}$")
    """Name of the tool, and of the function that `code` defines."""
    description: str = Field(min_length=1)
    """Description for the policy."""
    parameters: dict[str, JsonValue]
    """JSON schema of the arguments."""
    code: str = Field(min_length=1, max_length=65_536)
    """Python code that needs only the standard library."""

    @property
    def schema_for_policy(self) -> JsonObject:
        """The tool in OpenAI's form."""
        function: JsonObject = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ArenaTool(ToolCode):
    """A tool of an arena.

    Example:
        ArenaTool(name="double", description="Double it.", parameters={"type": "object"},
                  code="def double(number): return 2 * number", answer=42)
    """

    answer: JsonValue
    """Result of the call that solves the tool's question."""


_TOOLS = TypeAdapter(Annotated[list[ArenaTool], Field(min_length=1)])


class ToolOutcome(NamedTuple):
    """Outcome of one call of a tool."""

    value: Json
    """What the function returned; None if it failed."""
    failure: str = ""
    """Why it failed, as a short code; "" if it returned."""
    detail: str = ""


def arena_reward(num_solved: int, num_calls: int, num_asked: int) -> float:
    """The harmonic mean of precision (solved questions per call) and recall (solved questions per question).

    Source: ASTRA (arXiv:2601.21558), equations 30 and 31. It adds a small number to `num_calls`; here a rollout that
    solves nothing gets 0, calls or not.

    Args:
        num_solved: Questions that were solved, each counted once.
        num_calls: Calls that were made.
        num_asked: Questions that calls can solve.
    """
    if num_solved == 0:
        return 0.0
    precision, recall = num_solved / num_calls, num_solved / num_asked
    return 2 * precision * recall / (precision + recall)


def tool_program(tool: ToolCode, arguments: JsonObject) -> Program:
    """The program that makes one call of a tool.

    Raises:
        SandboxRequestError: If the arguments are too large to send.
    """
    call = encode_json({"name": tool.name, "arguments": arguments})
    return Program(code=_RUN, files={_TOOL: tool.code.encode(), _CALL: call.encode()}, fetch=(_RESULT,), limits=_LIMITS)


def read_outcome(result: Result) -> ToolOutcome:
    """Outcome of a call, from the result of its program; text that the code prints on stdout does not count."""
    if result.status is not Status.OK:
        lines = result.stderr.strip().splitlines()
        return ToolOutcome(None, REASONS[result.status].value, lines[-1] if lines else result.status.value)
    if _RESULT not in result.files:
        return ToolOutcome(None, NO_RESULT, result.file_errors.get(_RESULT, "it ended before it returned"))
    try:
        outcome = as_object(decode_json(result.files[_RESULT], what="the result"), "the result")
        encode_json(outcome)
    except BadRowError as error:  # half of a surrogate pair, or nested too deeply
        return ToolOutcome(None, NO_RESULT, str(error))
    if "refused" in outcome:
        return ToolOutcome(None, CALL_REFUSED, str(outcome["refused"]))
    return ToolOutcome(outcome.get("value"))


class Arena(Environment):
    """Tools of one row, each of which answers a question; its question is solved when a call returns the answer.

    The policy is not told which questions it solved. Only calls that reach a tool count: a call that names no tool, or
    whose arguments do not fit the schema, is refused earlier.
    """

    def __init__(self, metadata: JsonObject) -> None:
        """Make the arena of a row.

        Raises:
            ValueError: If the row's metadata has no arena, or one that breaks its format.
        """
        if ARENA not in metadata:
            raise ValueError(f"the row's metadata has no {ARENA!r}; `verl-pivot synthesize arenas` writes it")
        self._tools = {tool.name: tool for tool in _TOOLS.validate_python(metadata[ARENA])}
        self._solved: set[str] = set()
        self._num_calls = 0

    @property
    def tools(self) -> Sequence[JsonObject]:
        return [tool.schema_for_policy for tool in self._tools.values()]

    async def call(self, call: ToolCall) -> Json:
        """Run a call in the sandbox and return its result.

        Raises:
            ToolError: If the tool fails at these arguments.
            SandboxError: If the sandbox fails, which says nothing about the call.
        """
        self._num_calls += 1
        tool = self._tools[call.name]
        try:
            program = tool_program(tool, call.arguments)
        except SandboxRequestError as error:  # arguments of many megabytes
            raise ToolError(str(error)) from error
        outcome = read_outcome(*await execute([program]))
        if outcome.failure:
            raise ToolError(f"{call.name}: {outcome.detail}", _error_kind(outcome.failure))
        if equal(outcome.value, tool.answer):
            self._solved.add(call.name)
        return outcome.value

    async def score(self, answer: Message | None) -> Verdict:
        """`arena_reward`; what the policy says at the end does not count."""
        num_solved, num_asked = len(self._solved), len(self._tools)
        detail = f"{num_solved} of {num_asked} questions solved in {self._num_calls} calls"
        return graded(arena_reward(num_solved, self._num_calls, num_asked), detail)

    def progress(self) -> float | None:
        return len(self._solved) / len(self._tools)


def _error_kind(failure: str) -> ErrorKind:
    if failure == CALL_REFUSED:
        return ErrorKind.REFUSED
    return ErrorKind.TIME_LIMIT if failure == Reason.TIME_LIMIT else ErrorKind.EXECUTION_ERROR
