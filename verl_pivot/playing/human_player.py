"""HumanPlayer: lines that a person types -> PlayerTurn: a text, or a tool call with its arguments as JSON."""

import json
from collections.abc import Awaitable, Callable, Sequence

from verl_pivot.data.json_values import BadRowError, decode_json, encode_json
from verl_pivot.data.messages import parse_call
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.errors import PivotError
from verl_pivot.playing.player import PlayerTurn, call_as_text
from verl_pivot.rollout.notebook_turns import CODE, CODE_END, THINK, THINK_END
from verl_pivot.types import Json, JsonObject, Message

HELP = '''\
/call NAME {JSON}  call a tool, such as /call find_order {"order_id": 17}
/tools             show the tools and their arguments; /tools NAME shows the whole schema of one
/quit              leave; the conversation is not kept
"""                begins and ends a text of several lines
anything else      is your message to the user, which ends the conversation'''
STEP_HELP = '''\
A step is a thought, then Python code, which may call the functions above.
submit_final_answer(...) in the code ends the conversation.
"""    begins and ends a thought or code of several lines
/quit  leave; the conversation is not kept'''
_LONG_TEXT = '"""'

ReadLine = Callable[[str], Awaitable[str | None]]
"""Function that shows a prompt and returns the typed line, or None at the end of the input."""


class PlayerLeftError(PivotError):
    """The person at the keyboard quit, or the input ended, before the end of the conversation."""


class HumanPlayer:
    """A person at the keyboard, who sees what a model would see."""

    name = "human"

    def __init__(self, read_line: ReadLine, show: Callable[[str], None]) -> None:
        """Keep the functions that talk to the person.

        Args:
            read_line: Shows a prompt and returns the typed line.
            show: Shows help, schemas and input errors, which are not part of the conversation.
        """
        self._read_line = read_line
        self._show = show
        self._is_new = True

    async def take_turn(
        self, messages: Sequence[Message], tools: Sequence[JsonObject], max_tokens: int, *, sample: int
    ) -> PlayerTurn:
        if self._is_new:
            self._is_new = False
            self._show(f"{HELP}\n\n{list_tools(tools)}")
        while True:
            line = (await self._next_line("you> ")).strip()
            if line == _LONG_TEXT:
                line = await self._long_text()
            elif line == "/quit":
                raise PlayerLeftError("you left, so this conversation is not kept")
            elif line.startswith("/"):
                if (turn := self._command(line, tools)) is not None:
                    return turn
                continue
            if line:
                return PlayerTurn(content=line, raw_text=line)

    async def take_step(self, messages: Sequence[Message], max_tokens: int, *, sample: int) -> PlayerTurn:
        if self._is_new:
            self._is_new = False
            self._show(STEP_HELP)
        thought = await self._typed("thought> ")
        code = await self._typed("code> ")
        text = f"{THINK}{thought}{THINK_END}{CODE}\n{code}\n{CODE_END}"
        return PlayerTurn(content=text, raw_text=text)

    async def _typed(self, prompt: str) -> str:
        """A typed line, or a typed text of several lines."""
        line = await self._next_line(prompt)
        if line.strip() == "/quit":
            raise PlayerLeftError("you left, so this conversation is not kept")
        return await self._long_text() if line.strip() == _LONG_TEXT else line

    def _command(self, line: str, tools: Sequence[JsonObject]) -> PlayerTurn | None:
        """The turn of a typed command; None if the command only shows help or tools, or cannot be read."""
        command, _, rest = line.partition(" ")
        match command:
            case "/call":
                return self._call(rest)
            case "/tools":
                self._show(list_tools(tools, rest.strip()))
            case _:
                self._show(HELP)
        return None

    async def close(self) -> None:
        return None

    async def _next_line(self, prompt: str) -> str:
        line = await self._read_line(prompt)
        if line is None:
            raise PlayerLeftError("the input ended before the conversation did, so this conversation is not kept")
        return line

    async def _long_text(self) -> str:
        lines: list[str] = []
        while (line := await self._next_line("... ")).strip() != _LONG_TEXT:
            lines.append(line)
        return "\n".join(lines)

    def _call(self, typed: str) -> PlayerTurn | None:
        """The turn with a typed call; None if the call cannot be read, after the person is told why."""
        name, _, arguments = typed.strip().partition(" ")
        try:
            call = parse_call(name, decode_json(arguments.strip() or "{}", what=f"arguments of {name}"), None)
            text = call_as_text(call.name, encode_json(call.arguments))
        except BadRowError as error:
            self._show(f"{error}; type it as /call NAME {{JSON}}")
            return None
        return PlayerTurn(calls=(call,), raw_text=text)


def list_tools(tools: Sequence[JsonObject], name: str = "") -> str:
    """One line for each tool with its arguments; if `name` is given, the whole schema of that tool."""
    if name:
        chosen = next((tool for tool in tools if name_of(tool) == name), None)
        if chosen is None:
            return f"there is no tool {name!r}; the tools are {', '.join(map(name_of, tools)) or 'none'}"
        return _indented(chosen)
    return "\n".join(map(_summary, tools)) or "There are no tools: type your answer."


def _indented(value: Json) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _summary(tool: JsonObject) -> str:
    match tool["function"]:
        case {"parameters": {"properties": dict(properties), **parameters}, **function}:
            required = parameters.get("required") or []
            arguments = [_argument(key, value, key in required) for key, value in properties.items()]  # type: ignore[operator]  # a list by JSON schema
        case {**function}:
            arguments = []
        case _:
            raise AssertionError(tool)
    about = str(function.get("description") or "").partition("\n")[0]
    return f"{name_of(tool)}({', '.join(arguments)})" + (f"  {about}" if about else "")


def _argument(name: str, schema: Json, is_required: bool) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    shown = f"{name}: {kind}" if isinstance(kind, str) else name
    return shown if is_required else f"{shown} (optional)"
