"""Cast of a conversation: the user, the caller and the tools; a program checks each of their messages."""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Literal, TypeVar

from pydantic import BaseModel, Field

from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.playing.endpoint_player import sent_message
from verl_pivot.quality.contract import Names
from verl_pivot.synthesis.caller_turns import is_plain, read_action
from verl_pivot.synthesis.data_flow import result_value, scalars
from verl_pivot.synthesis.draws import DrawnT, first_good, good
from verl_pivot.synthesis.magnet_prompts import (
    CALLER,
    HINT,
    ToolResult,
    UserMessage,
    answer_prompt,
    request_prompt,
    result_prompt,
)
from verl_pivot.synthesis.path_calls import call_problem, text_problem, withheld_problem
from verl_pivot.synthesis.tool_paths import PathCall, PathTurn, ToolPath
from verl_pivot.synthesis.workshop import Workshop
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.tools.calls import Toolbox
from verl_pivot.types import JsonObject, Malformed, Message, Role, ToolCall
from verl_pivot.validation import Options

USER, CALLER_ROLE, TOOLS = "user", "caller", "tools"
"""Roles of the writers; the role `writer` is used for roles without a model of their own."""

_NOT_A_WORD = re.compile(r"[\W\d_]|[a-z][A-Z]")
"""Part of a tool's name that shows that the name is no ordinary word of a sentence."""
FormT = TypeVar("FormT", bound=BaseModel)


class MagnetOptions(Options):
    """Options for making a conversation from a path."""

    results: Literal["writer", "tools"] = "writer"
    """Source of results: "writer" is a model in the role `tools`; "tools" runs the calls with the tools of --tools."""
    attempts: int = Field(default=3, ge=1)
    """Maximum number of draws of each message; the first draw without a problem is used."""
    hints: bool = False
    """Whether the caller is told the problem of its last draw; the conversation does not keep this hint (HardGen)."""
    may_write: Names = ()
    """Arguments, as tool.argument, whose text the caller composes itself, such as send_mail.body."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of all writers."""
    max_tokens: int = Field(default=1024, ge=16)
    """Maximum number of tokens of one answer."""


class Cast:
    """Speakers of one conversation. Each method draws a message until it has no problem.

    Raises:
        BadRowError: From each method, if every draw has a problem, or if a tool refuses a call.
        ToolFailureError: From `result`, if a system that a tool needs fails.
        UserCodeError: From `result`, if a tool's own code fails.
    """

    def __init__(
        self,
        options: MagnetOptions,
        workshop: Workshop,
        tools: Sequence[JsonObject],
        toolbox: Toolbox | None,
        *,
        user_role: str = USER,
    ) -> None:
        """Keep the settings; nothing is drawn yet.

        Args:
            options: Options of the draws.
            workshop: Workshop with the writers.
            tools: Schemas of all tools that the caller has.
            toolbox: Tools that run the calls; None if a writer writes the results.
            user_role: Role of the writer that plays the user.
        """
        self._options, self._workshop, self._tools, self._toolbox = options, workshop, tools, toolbox
        self._user_role = user_role
        self._draws = count()
        self._telling_names = [name for tool in tools if _NOT_A_WORD.search(name := name_of(tool))]

    async def request(self, turn: PathTurn, path: ToolPath, messages: Sequence[Message]) -> Message:
        """The user's message with the request that the calls of a turn answer."""
        return await self._user(request_prompt(turn, path, messages, self._tools))

    async def answer(self, turn: PathTurn, messages: Sequence[Message]) -> Message:
        """The user's message with the value that the request left out."""
        return await self._user(answer_prompt(turn, messages, self._tools))

    async def call(
        self,
        planned: PathCall,
        messages: Sequence[Message],
        results: Sequence[Message],
        *,
        withheld: str | None,
        before: Sequence[Message],
    ) -> Message:
        """The caller's next turn, which makes the path's next call.

        Args:
            planned: The path's call.
            messages: The conversation so far.
            results: [num_calls] results of the path's earlier calls.
            withheld: Argument for which the caller had to ask; None if there is none.
            before: Messages before the caller asked.
        """

        def problem(action: Message) -> Malformed | None:
            found = call_problem(
                action,
                planned,
                messages=messages,
                results=results,
                tools=self._tools,
                may_write=self._options.may_write,
            )
            if found is None and withheld is not None:
                return withheld_problem(action.tool_calls[0], withheld, before)
            return found

        action = await self._caller(messages, problem)
        return replace(action, tool_calls=(replace(action.tool_calls[0], id=f"call_{len(results)}"),))

    async def text(self, messages: Sequence[Message], *, withheld: str | None) -> Message:
        """The caller's next turn without calls; it asks for an argument if one is withheld."""
        return await self._caller(messages, lambda action: text_problem(action, withheld))

    async def result(self, call: ToolCall, fields: Sequence[str], messages: Sequence[Message]) -> Message:
        """The result of a call, which must have the fields from which later calls take values."""
        if self._toolbox is None:
            text = await self._written(call, fields, messages)
        else:
            text = await self._run(call, fields, self._toolbox)
        return Message(role=Role.TOOL, content=text, tool_call_id=call.id, name=call.name)

    async def _user(self, prompt: Sequence[JsonObject]) -> Message:
        async def draw(k: int) -> Message | Malformed:
            said = await self._ask_for(UserMessage, prompt, self._user_role, k)
            if isinstance(said, Malformed):
                return said
            text = said.text.strip()
            if not text or not is_plain(text):
                detail = f"the request is empty or contains markers of a chat template: {text!r}"
                return Malformed(reason="bad_request", detail=detail)
            if named := [name for name in self._telling_names if name.casefold() in text.casefold()]:
                return Malformed(reason="request_names_tool", detail=f"the request names tool {named[0]}: {text!r}")
            return Message(role=Role.USER, content=text)

        return await self._drawn(draw)

    async def _caller(self, messages: Sequence[Message], problem: Callable[[Message], Malformed | None]) -> Message:
        sent = tuple(map(sent_message, messages))
        hint = ""

        async def draw(k: int) -> Message | Malformed:
            nonlocal hint
            question = WriterQuestion(
                messages=({"role": "system", "content": CALLER + hint}, *sent),
                seed=self._workshop.seed(k),
                max_tokens=self._options.max_tokens,
                temperature=self._options.temperature,
                tools=tuple(self._tools),
            )
            action = read_action(await self._workshop.answer(question, CALLER_ROLE))
            found = action if isinstance(action, Malformed) else problem(action)
            if found is not None and self._options.hints:
                hint = HINT.format(problem=found.detail)
            return action if found is None else found

        return await self._drawn(draw)

    async def _written(self, call: ToolCall, fields: Sequence[str], messages: Sequence[Message]) -> str:
        prompt = result_prompt(call, fields, messages, self._tools)

        async def draw(k: int) -> str | Malformed:
            written = await self._ask_for(ToolResult, prompt, TOOLS, k)
            if isinstance(written, Malformed):
                return written
            try:
                text = written.result if isinstance(written.result, str) else encode_json(written.result)
            except BadRowError as error:
                return Malformed(reason="bad_result", detail=str(error))
            if not is_plain(text):
                detail = f"the result contains markers of a chat template: {text!r}"
                return Malformed(reason="bad_result", detail=detail)
            return _missing_field(text, fields) or text

        return await self._drawn(draw)

    async def _run(self, call: ToolCall, fields: Sequence[str], toolbox: Toolbox) -> str:
        observation = (await toolbox.run_one(call, 0)).observed()
        if observation.error is not None:
            raise BadRowError("call_refused", f"{call.name}: {observation.text}")
        if problem := _missing_field(observation.text, fields):
            raise BadRowError(problem.reason, f"{call.name}: {problem.detail}")
        return observation.text

    async def _ask_for(self, form: type[FormT], prompt: Sequence[JsonObject], role: str, k: int) -> FormT | Malformed:
        options = self._options
        return await self._workshop.ask_for(
            form, prompt, role=role, k=k, max_tokens=options.max_tokens, temperature=options.temperature
        )

    async def _drawn(self, draw: Callable[[int], Awaitable[DrawnT | Malformed]]) -> DrawnT:
        """The first draw without a problem."""
        return good(await first_good(draw, islice(self._draws, self._options.attempts)))


def _missing_field(result: str, fields: Sequence[str]) -> Malformed | None:
    """Why a result cannot give later calls their values; None if it can."""
    held = {each.path for each in scalars(result_value(result))}
    missing = [field or "plain text" for field in fields if field not in held]
    return Malformed(reason="result_without_field", detail=f"it lacks {', '.join(missing)}") if missing else None
