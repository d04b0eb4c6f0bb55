"""Text in ToolACE's notation, `[find_order(id=17), refund(id=17)]` -> ToolCalls, and its prompt -> schemas."""

import ast
import json
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace

from verl_pivot.data.json_values import BadRowError, as_list, as_object, decode_json
from verl_pivot.formats.columns import with_first_content
from verl_pivot.formats.conversation import MessagesAndTools, PromptAndTools
from verl_pivot.formats.literals import NOT_A_LITERAL, json_value
from verl_pivot.types import Json, Message, Role, ToolCall

_CALL = re.compile(r"\s*([^\W\d][^()\[\]{}'\"=,]*)\(")
_SEPARATOR = re.compile(r"\s*(?:,|\Z)")
_REST = re.compile(r"\s*")
_NOTATION_EXAMPLE = re.compile(r"\[func\w*\(")
_BEFORE_TOOLS = "Here is a list of functions in JSON format that you can invoke:"
_AFTER_TOOLS = re.compile(
    r"\s*(?:\.\s*)?Should you decide to return the function call\(s\)[.,]?\s*Put it in the format of "
    r"\[func1\(params_name=params_value, params_name2=params_value2\.\.\.\), func2\(params\)\]"
    r"\s*NO other text MUST be included\.\s*"
)
# ToolACE and BFCL write the names of Python's types into their schemas.
_SCHEMA_TYPES = {
    "dict": "object",
    "list": "array",
    "tuple": "array",
    "float": "number",
    "int": "integer",
    "bool": "boolean",
}


def read_bracket_calls(messages: Sequence[Message], tools: Json) -> MessagesAndTools:
    """Turn assistant messages that are wholly a list in this notation into calls.

    A conversation without such a message is returned unchanged.

    Args:
        messages: Messages in the order of the conversation.
        tools: Schemas of a column; None takes those of the prompt.

    Raises:
        BadRowError: If such a list cannot be read or calls an unknown tool, or if the prompt's schemas and its
            description of the notation cannot be cut out exactly.
    """
    if not any(_looks_like_calls(message) for message in messages):
        return MessagesAndTools(list(messages), tools)
    if messages[0].role is Role.SYSTEM and _NOTATION_EXAMPLE.search(messages[0].content):
        prompt = _cut_tools(messages[0].content)
        messages = with_first_content(messages, prompt.text)
        tools = tools or prompt.tools
    names = [_name(tool) for tool in as_list(tools, "tools")]
    read = [
        replace(message, content="", tool_calls=tuple(_calls(message.content, names)))
        if _looks_like_calls(message)
        else message
        for message in messages
    ]
    return MessagesAndTools(read, tools)


def _looks_like_calls(message: Message) -> bool:
    if message.role is not Role.ASSISTANT or message.tool_calls:
        return False
    text = message.content.strip()
    return (
        text.startswith("[") and text.endswith("]") and text[:-1].rstrip().endswith(")") and bool(_CALL.match(text, 1))
    )


def _cut_tools(text: str) -> PromptAndTools:
    before, found, rest = text.partition(_BEFORE_TOOLS)
    rest = rest.lstrip()
    try:
        end = json.JSONDecoder().raw_decode(rest)[1] if found else 0
    except (ValueError, RecursionError):
        end = 0
    after = _AFTER_TOOLS.match(rest, end)
    if not end or after is None:
        raise BadRowError(
            "unclear_tools",
            "the prompt asks for calls as [func(...)], but not with the wording of ToolACE: cut that part out, and put "
            "the schemas into a column tools",
        )
    tools = [_with_json_types(tool) for tool in as_list(decode_json(rest[:end], what="tools"), "tools")]
    return PromptAndTools((before.rstrip() + "\n" + rest[after.end() :].lstrip()).strip(), tools)


def _with_json_types(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_with_json_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _SCHEMA_TYPES.get(value, value) if key == "type" and isinstance(value, str) else _with_json_types(value)
        for key, value in schema.items()
    }


def _name(tool: Json) -> Json:
    schema = as_object(tool, "a tool")
    function = schema.get("function")
    return function.get("name") if isinstance(function, dict) else schema.get("name")


def _calls(text: str, names: Collection[Json]) -> list[ToolCall]:
    """Calls in a list of this notation.

    Names may hold spaces and the like, which Python's parser refuses, so the arguments of each call are parsed alone.
    """
    inner, calls, position = text.strip()[1:-1], [], 0
    while not _REST.fullmatch(inner, position):
        start = _CALL.match(inner, position)
        if start is None:
            raise _unclear(text)
        name = start[1].strip()
        if names and name not in names:
            raise BadRowError("bad_tool_call", f"a call names the unknown tool {name!r}")
        end = _end_of_call(inner, start.end() - 1)
        separator = None if end is None else _SEPARATOR.match(inner, end)
        if end is None or separator is None:
            raise _unclear(text)
        calls.append(ToolCall(name=name, arguments=_arguments(inner[start.end() - 1 : end], text)))
        position = separator.end()
    return calls


def _end_of_call(text: str, opening: int) -> int | None:
    """Position behind the bracket that closes the one at `opening`, ignoring brackets in strings; None without one."""
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
    if len(arguments) != len(call.keywords):  # `**more`, or a name given twice
        raise _unclear(whole)
    return arguments


def _unclear(text: str) -> BadRowError:
    return BadRowError("bad_tool_call", f"a list of calls needs named arguments with literal values, got {text[:80]!r}")
