"""Step `arena_tools`: a graph of questions -> a row with a Python tool for each question that needs a tool.

ASTRA (arXiv:2601.21558, section 3) accepts a tool whose output contains the answer anywhere. Here a call's result must
equal the answer, each value of the call must have a source, and a call with other arguments must not give the answer.
"""

import re
from collections.abc import Sequence

from pydantic import Field, JsonValue

from verl_pivot.data.forged_turns import without_chat_tokens
from verl_pivot.data.json_values import BadRowError, encode_json, equal
from verl_pivot.data.tool_schemas import parse_tools, schemas_by_name
from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.synthesis.argument_sources import unsourced_values
from verl_pivot.synthesis.drafts import Draft
from verl_pivot.synthesis.draws import first_good
from verl_pivot.synthesis.question_graph import AskedQuestion, QuestionGraph, graph_of
from verl_pivot.synthesis.steps import make_step
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.tools.arena import ARENA, CALL_REFUSED, ArenaTool, ToolCode, ToolOutcome, read_outcome, tool_program
from verl_pivot.types import Json, JsonObject, Malformed, Message, Role, ToolCall
from verl_pivot.validation import Options
from verl_pivot.verifiers.sandboxed import execute
from verl_pivot.verifiers.verdicts import Reason

PROGRAMMER = "programmer"
"""Role that writes the tools; the role `writer` is used if no model is named for it."""
_READY_SECONDS = 60.0
"""Timeout in seconds for the first tool, which shows that the sandbox works."""
_UNBOUNDED = re.compile(r'"(pattern|\$)')
"""Schema keywords that are refused: schemas are checked outside of the sandbox, where these could take any time."""


class WrittenTool(ToolCode):
    """A tool as the model wrote it, with the call that answers its question."""

    arguments: dict[str, JsonValue]
    """Arguments of the call that answers the question."""


class ArenaToolsOptions(Options):
    attempts: int = Field(default=3, ge=1)
    """Maximum number of draws of each tool; the first draw without a problem is used."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of the model that writes the tools."""
    max_tokens: int = Field(default=2048, ge=16)
    """Maximum number of tokens of one answer."""


@make_step("arena_tools", options=ArenaToolsOptions)
class ArenaToolsStep:
    """Makes a row for `verl_pivot.tools.arena.Arena` from a draft's questions; the tools of all of them must work."""

    def __init__(self, options: ArenaToolsOptions) -> None:
        self._options = options

    async def prepare(self, workshop: Workshop) -> None:
        """Run a test tool in the sandbox before any model is asked.

        Raises:
            SandboxError: If no sandbox can run a tool.
            SandboxRequestError: If the sandbox refuses the test tool.
        """
        tool = ToolCode(name="ready", description="Tells that it runs.", parameters={}, code="def ready(): return True")
        await (await shared_sandbox()).run_many([tool_program(tool, {})], deadline_seconds=_READY_SECONDS)

    async def __call__(self, draft: Draft, workshop: Workshop) -> Sequence[Draft]:
        graph = graph_of(draft, workshop)
        tools: dict[str, ArenaTool] = {}
        try:
            for question in graph.with_tools:
                tool = await self._written(question, graph, list(tools), workshop)
                tools[tool.name] = tool
        except SandboxError as error:
            return [draft.rejected("sandbox_failed", str(error))]
        metadata: JsonObject = {ARENA: [tool.model_dump(mode="json") for tool in tools.values()]}
        prompt: list[Json] = [Message(role=Role.USER, content=graph.request).as_dict()]
        return [draft.made(0, task={"prompt": prompt, "metadata": encode_json(metadata)})]

    async def _written(
        self, question: AskedQuestion, graph: QuestionGraph, taken: Sequence[str], workshop: Workshop
    ) -> ArenaTool:
        """The first drawn tool without a problem for a question.

        Raises:
            BadRowError: If every draw has a problem; the message has that of the last draw.
            SandboxError: If the sandbox fails.
        """
        attempts = self._options.attempts
        drawn = await first_good(
            lambda k: self._draw(question, graph, taken, workshop, k),
            range(question.id * attempts, (question.id + 1) * attempts),
        )
        if isinstance(drawn, Malformed):
            raise BadRowError(drawn.reason, f"question {question.id}: {drawn.detail}")
        return ArenaTool(**drawn.model_dump(exclude={"arguments"}), answer=question.answer)

    async def _draw(
        self, question: AskedQuestion, graph: QuestionGraph, taken: Sequence[str], workshop: Workshop, k: int
    ) -> WrittenTool | Malformed:
        options = self._options
        written = await workshop.ask_for(
            WrittenTool,
            _prompt(question, graph, taken),
            role=PROGRAMMER,
            k=k,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
        )
        if isinstance(written, Malformed):
            return written
        try:
            problem = call_problem(written, question, graph, taken)
        except BadRowError as error:
            return Malformed(reason=error.reason, detail=str(error))
        return problem or await _run_problem(written, question, f"{workshop.seed(k, 0):x}") or written


def call_problem(
    written: WrittenTool, question: AskedQuestion, graph: QuestionGraph, taken: Sequence[str]
) -> Malformed | None:
    """The problem of a tool and its call that can be found without running it; None if there is none.

    Args:
        written: The tool.
        question: The question that the call answers.
        graph: All questions.
        taken: Names of the earlier tools of the draft.

    Raises:
        BadRowError: If the tool's parameters are no schema, or the tool has text that JSON cannot hold.
    """
    if problem := _schema_problem(written, taken):
        return problem
    schema, call = written.schema_for_policy, ToolCall(name=written.name, arguments=written.arguments)
    request = Message(role=Role.USER, content=graph.request)
    results = [Message(role=Role.TOOL, content=encode_json(each.answer)) for each in graph.known_before(question)]
    if unsourced := unsourced_values(call, [request, *results], schema):
        return Malformed(reason="invented_value", detail="; ".join(unsourced))
    for number, result in zip(question.depends_on, results, strict=True):
        others = [each for each in results if each is not result]
        if not unsourced_values(call, [request, *others], schema):
            detail = f"the call {encode_json(written.arguments)} uses no value of the answer to question {number}"
            return Malformed(reason="dependency_unused", detail=detail)
    return None


def _schema_problem(written: WrittenTool, taken: Sequence[str]) -> Malformed | None:
    whole = encode_json(written.model_dump(mode="json"))
    tools = encode_json(list(parse_tools([written.schema_for_policy])))
    if written.name in taken:
        return Malformed(reason="name_taken", detail=f"another tool already has the name {written.name}")
    if without_chat_tokens(whole) != whole:
        return Malformed(reason="markers_in_tool", detail="the tool contains markers of a chat template")
    if _UNBOUNDED.search(encode_json(written.parameters)):
        return Malformed(reason="unbounded_schema", detail="the schema must not use `pattern` or `$ref`")
    problem = schemas_by_name(tools)[written.name].problem(written.arguments)
    return None if problem is None else Malformed(reason="bad_arguments", detail=problem.detail)


async def _run_problem(written: WrittenTool, question: AskedQuestion, word: str) -> Malformed | None:
    """The problem of the results of a tool's calls; None if there is none.

    Args:
        written: The tool.
        question: The question that the call answers.
        word: Text that equals no argument, for the call with other arguments.

    Raises:
        SandboxError: If the sandbox fails.
    """
    others = {name: other_value(value, word) for name, value in written.arguments.items()}
    if equal(others, written.arguments):
        return Malformed(reason="no_arguments", detail="no argument of the call can be varied to test the tool")
    try:
        programs = [tool_program(written, arguments) for arguments in (written.arguments, written.arguments, others)]
    except SandboxRequestError as error:
        return Malformed(reason="tool_too_large", detail=str(error))
    right = read_outcome(*await execute(programs[:1]))
    if problem := answer_problem(right, question.answer):
        return problem
    again, other = map(read_outcome, await execute(programs[1:]))
    if answer_problem(again, question.answer):
        return Malformed(reason="not_repeatable", detail=f"the repeated call gives {again.detail or again.value!r}")
    if other.failure not in ("", CALL_REFUSED, Reason.RUNTIME_ERROR):
        return Malformed(reason=other.failure, detail=f"with arguments {encode_json(others)}: {other.detail}")
    if answer_problem(other, question.answer) is None:
        detail = f"other arguments also give the answer: {encode_json(others)}"
        return Malformed(reason="answer_of_other_arguments", detail=detail)
    return None


def answer_problem(outcome: ToolOutcome, answer: Json) -> Malformed | None:
    """Why a call's result is not the answer, as a value of the same JSON type; None if it is."""
    if outcome.failure:
        return Malformed(reason=outcome.failure, detail=outcome.detail)
    if not equal(outcome.value, answer):
        detail = f"the call gives {encode_json(outcome.value)}, but the answer is {encode_json(answer)}"
        return Malformed(reason="other_answer", detail=detail)
    return None


def other_value(value: Json, word: str) -> Json:
    """A copy of the value in which each text, number, boolean and null is another; empty lists and objects stay.

    Args:
        value: Any JSON value.
        word: Text that replaces each text and null.
    """
    match value:
        case dict():
            return {key: other_value(child, word) for key, child in value.items()}
        case list():
            return [other_value(child, word) for child in value]
        case bool():
            return not value
        case int() | float():
            return 0.5 if value == -0.5 else -value - 1
        case _:
            return word


def _prompt(question: AskedQuestion, graph: QuestionGraph, taken: Sequence[str]) -> list[JsonObject]:
    known = "".join(f"\n- {each.question} {encode_json(each.answer)}" for each in graph.known_before(question))
    lines = [
        "Write a tool as a Python function, and the call of it that answers this question:",
        question.question,
        f"The call returns exactly this JSON value: {encode_json(question.answer)}",
        f"The request that the question is a part of: {graph.request}",
        f"Before the call, this is known:{known or ' the request alone.'}",
        "- The values of the arguments stand in the request or in what is known, word for word. If something is known "
        "from earlier questions, the call needs a value of each of them.",
        "- The function looks its data up in tables of its own, or computes. It has more data than the question needs, "
        "so that other arguments give other results, and raises ValueError for what it does not have.",
        "- It uses Python's standard library alone, no network, no files, no clock and no chance.",
        "- `parameters` is a JSON schema of type object. Neither it nor `description` tells the answer or a value of "
        "the call. The function has the name of the tool, and takes the arguments by their names.",
        f"- These names are taken: {', '.join(taken) or 'none'}.",
    ]
    return [{"role": "user", "content": "\n".join(lines)}]
