"""Calls that ToolACE writes as text, `[find_order(id=17), refund(id=17)]`, and the schemas in its prompt."""

import ast
import json
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json
from verl_pivot.formats.literals import NOT_A_LITERAL, json_value
from verl_pivot.types import Json, Message, Role, ToolCall

_CALL = re.compile(r"\s*([^\W\d][^()\[\]{}'\"=,]*)\(")
_SAMPLE = re.compile(r"\[func\w*\(")
_BEFORE = "Here is a list of functions in JSON format that you can invoke:"
_AFTER = re.compile(
    r"\s*\.?\s*Should you decide to return the function call\(s\)[.,]?\s*Put it in the format of "
    r"\[func1\(params_name=params_value, params_name2=params_value2\.\.\.\), func2\(params\)\]"
    r"\s*NO other text MUST be included\.\s*"
)
# ToolACE and BFCL write Python's names of types into their schemas.
_TYPES = {"dict": "object", "list": "array", "tuple": "array", "float": "number", "int": "integer", "bool": "boolean"}


class Brackets(NamedTuple):
    messages: list[Message]
    tools: Json


def read_brackets(messages: Sequence[Message], tools: Json) -> Brackets:
    """Turns that are wholly such a list become calls; a conversation without one stays as it is.

    Args:
        messages: In the order of the conversation.
        tools: Schemas of a column; None takes them out of the prompt.

    Raises:
        BadRowError: If such a list cannot be read, calls a tool that is not given, or the prompt's own
            schemas and its demand for this notation cannot be cut out exactly.
    """
    if not any(_looks_like_calls(message) for message in messages):
        return Brackets(list(messages), tools)
    prompt = messages[0]
    if prompt.role is Role.SYSTEM and _SAMPLE.search(prompt.content):
        cut = _cut_tools(prompt.content)
        messages = [*([replace(prompt, content=cut.text)] if cut.text else []), *messages[1:]]
        tools = tools or cut.tools
    names = [_name(tool) for tool in as_list(tools, "tools")]
    read = [
        replace(message, content="", tool_calls=tuple(_calls(message.content, names)))
        if _looks_like_calls(message)
        else message
        for message in messages
    ]
    return Brackets(read, tools)


def _looks_like_calls(message: Message) -> bool:
    if message.role is not Role.ASSISTANT or message.tool_calls:
        return False
    text = message.content.strip()
    return (
        text.startswith("[") and text.endswith("]") and text[:-1].rstrip().endswith(")") and bool(_CALL.match(text, 1))
    )


class _BracketPrompt(NamedTuple):
    text: str
    tools: list[Json]


def _cut_tools(text: str) -> _BracketPrompt:
    before, found, rest = text.partition(_BEFORE)
    rest = rest.lstrip()
    try:
        end = json.JSONDecoder().raw_decode(rest)[1] if found else 0
    except (ValueError, RecursionError):
        end = 0
    after = _AFTER.match(rest, end)
    if not end or after is None:
        raise BadRowError(
            "unclear_tools",
            "the prompt asks for calls as [func(...)], not in ToolACE's words; cut that out, and give a column tools",
        )
    tools = [_with_json_types(tool) for tool in as_list(decode_json(rest[:end], what="tools"), "tools")]
    return _BracketPrompt((before.rstrip() + "\n" + rest[after.end() :].lstrip()).strip(), tools)


def _with_json_types(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_with_json_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _TYPES.get(value, value) if key == "type" and isinstance(value, str) else _with_json_types(value)
        for key, value in schema.items()
    }


def _name(tool: Json) -> Json:
    schema = as_object(tool, "a tool")
    function = schema.get("function")
    return function.get("name") if isinstance(function, dict) else schema.get("name")


def _calls(text: str, names: Collection[Json]) -> list[ToolCall]:
    """Names may hold spaces and the like, so each call is parsed by itself, under a name that Python takes."""
    rest, calls = text.strip()[1:-1], []
    while rest.strip():
        start = _CALL.match(rest)
        if start is None:
            raise _unclear(text)
        name = start[1].strip()
        if names and name not in names:
            raise BadRowError("bad_tool_call", f"a call of {name!r}, which is none of the tools")
        end = _end_of_call(rest, start.end() - 1)
        if end is None:
            raise _unclear(text)
        calls.append(ToolCall(name=name, arguments=_arguments(rest[start.end() - 1 : end], text)))
        rest = rest[end:].lstrip()
        if rest and not rest.startswith(","):
            raise _unclear(text)
        rest = rest[1:]
    return calls


def _end_of_call(text: str, opening: int) -> int | None:
    """Where the parenthesis that opens there is closed, strings aside."""
    depth, quote, position = 0, "", opening
    while position < len(text):
        letter = text[position]
        if quote:
            position += letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return None


def _arguments(text: str, whole: str) -> dict[str, Json]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("an argument without a name")
        arguments = {str(argument.arg): json_value(argument.value) for argument in call.keywords if argument.arg}
    except NOT_A_LITERAL as error:
        raise _unclear(whole) from error
    if len(arguments) != len(call.keywords):  # **more
        raise _unclear(whole)
    return arguments


def _unclear(text: str) -> BadRowError:
    return BadRowError("bad_tool_call", f"no list of calls with named, literal arguments: {text[:80]!r}")
