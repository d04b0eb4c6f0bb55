"""A path and the conversation so far -> prompts for the writers of Magnet's user, caller and tools."""

from collections.abc import Sequence

from pydantic import Field, JsonValue

from verl_pivot.data.json_values import encode_json
from verl_pivot.data.tool_schemas import name_of
from verl_pivot.synthesis.tool_paths import PathTurn, ToolPath
from verl_pivot.types import Json, JsonObject, Message, ToolCall
from verl_pivot.validation import Options

CALLER = (
    "You are an assistant with tools. Call one tool at a time, and read its result before you go on. Take every value "
    "from the conversation, letter for letter, and never make one up: where the user has to say a value that a tool "
    "requires, ask for it in one sentence. When everything is done that the user wants, answer in one or two sentences."
)
"""System prompt of the caller; it is not part of the trajectory."""

HINT = "\nYour last attempt at the next turn was wrong: {problem}. Write the turn again."
"""Text that is added to the caller's system prompt after a wrong draw, if hints are on."""
_SAY_FOR_IMPLIED = (
    "The assistant finds out by itself that it has to call this tool first: do not ask for what it does, but let the "
    "message say, in passing, a made-up value for everything that it requires:\n{schema}"
)


class UserMessage(Options):
    """A user message in the format of the writer's answer."""

    text: str = Field(min_length=1)


class ToolResult(Options):
    """A tool's result in the format of the writer's answer."""

    result: JsonValue


def request_prompt(
    turn: PathTurn, path: ToolPath, messages: Sequence[Message], tools: Sequence[JsonObject]
) -> list[JsonObject]:
    """Prompt for the user's writer: the calls of a turn -> the request that they answer, without tool names."""
    mentioned = [call for call in turn.calls if not call.is_implied]
    implied = [call for call in turn.calls if call.is_implied]
    lines = [
        "Write the next message of a user to an assistant. The assistant answers it with these calls, in this order:",
        *(f"{number}. {_schema(call.tool, tools)}" for number, call in enumerate(mentioned, start=1)),
        "The user knows no tools: say what is wanted, and name no tool and no argument.",
        *_values_to_leave_out(turn, path),
        "Everything else that the calls require, the message says with made-up values, each written exactly as the "
        "argument takes it. Agree with the conversation so far; what it has need not be said again.",
        *(_SAY_FOR_IMPLIED.format(schema=_schema(call.tool, tools)) for call in implied),
        _so_far(messages),
    ]
    return _asked(lines)


def answer_prompt(turn: PathTurn, messages: Sequence[Message], tools: Sequence[JsonObject]) -> list[JsonObject]:
    """Prompt for the user's writer: the value that a request left out -> the answer to the assistant's question."""
    lines = [
        "Write the next message of the user, who answers the assistant's question.",
        f"The message says a made-up value for {turn.withheld} of this tool, written exactly as the argument takes it, "
        "agrees with the conversation, and names no tool and no argument:",
        _schema(turn.calls[-1].tool, tools),
        _so_far(messages),
    ]
    return _asked(lines)


def result_prompt(
    call: ToolCall, fields: Sequence[str], messages: Sequence[Message], tools: Sequence[JsonObject]
) -> list[JsonObject]:
    """Prompt for the tools' writer: a call -> its result, with the fields that later calls of the path need."""
    needed = ", ".join(field or "a text alone" for field in fields)
    lines = [
        "You play a tool, and return the result of one call as JSON, as the tool of a real service would:",
        encode_json({"name": call.name, "arguments": call.arguments}),
        _schema(call.name, tools),
        "Agree with everything that the conversation has so far. Make up values that look real, and never return an "
        "error.",
        *([f"The result must have: {needed}. Dots stand between keys, lists may stand anywhere, and * is an id as a "
           "key, such as card_4421."] if fields else []),
        _so_far(messages),
    ]  # fmt: skip
    return _asked(lines)


def _values_to_leave_out(turn: PathTurn, path: ToolPath) -> list[str]:
    lines = [
        f"Do not say {link.argument} of {call.tool}: the assistant takes it from {link.result or 'the text'} in the "
        f"result of {path.calls[link.call].tool}."
        for call in turn.calls
        for link in call.links
    ]
    if turn.withheld is not None:
        lines.append(f"Do not say {turn.withheld} of {turn.calls[-1].tool}: the assistant asks for it afterwards.")
    return lines


def _schema(name: str, tools: Sequence[JsonObject]) -> str:
    return encode_json(next(tool["function"] for tool in tools if name_of(tool) == name))


def _so_far(messages: Sequence[Message]) -> str:
    if not messages:
        return "This message begins the conversation."
    shown: list[Json] = [message.as_dict() for message in messages]
    return f"The conversation so far:\n{encode_json(shown)}"


def _asked(lines: Sequence[str]) -> list[JsonObject]:
    return [{"role": "user", "content": "\n".join(lines)}]
