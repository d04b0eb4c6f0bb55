"""Calls as text, `<function=name><parameter=...>`, as OpenHands and SWE-smith write them -> ToolCall."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from verl_pivot.data.json_values import BadRowError, decode_json
from verl_pivot.data.tool_schemas import name_of, parse_tools
from verl_pivot.formats.columns import end_of_thinking, with_first_content
from verl_pivot.formats.conversation import MessagesAndTools, PromptAndTools
from verl_pivot.formats.literals import parse_literal
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_BEGIN_LIST = "You have access to the following functions:\n\n---- BEGIN FUNCTION #1: "
_BEGIN_FUNCTION = re.compile(r"---- BEGIN FUNCTION #\d+: (\S+) ----\nDescription: ")
_END_FUNCTION = re.compile(r"\n---- END FUNCTION #\d+ ----\s*")
_NOTATION = re.compile(
    r"If you choose to call a function ONLY reply in the following format with NO suffix:\n.*?"
    r"<IMPORTANT>\nReminder:\n(?:- [^\n]*+\n)*- [^\n]*+\n?(?:</IMPORTANT>)?\s*\Z",
    re.DOTALL,
)
_PARAMETER = re.compile(r"^  \(\d+\) (\S+) \((\w+), (required|optional)\): ", re.MULTILINE)
_NO_PARAMETERS = "No parameters are required for this function."
_ENUM = "\nAllowed values: [`"
_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER_TAG = re.compile(r"\s*<parameter=([^<>\n]+)>")
_GAP = re.compile(r"\s*")
_RESULT = re.compile(r"EXECUTION RESULT of \[([^\]\n]*)\]:\n")
_EXAMPLE = "Here's a running example of how to perform a task with the "
_TASK = "--------------------- NEW TASK DESCRIPTION ---------------------\n"
_END_OF_TASK = "\n--------------------- END OF NEW TASK DESCRIPTION ---------------------"
_PYTHON_TYPES = {"integer": int, "number": int | float, "boolean": bool, "array": list, "object": dict}

ParameterTypes: TypeAlias = Mapping[str, Mapping[str, Json]]
"""{name of a tool: {name of a parameter: its type in the schema}}."""


def teaches_text_calls(text: str) -> bool:
    """Whether a prompt teaches this notation to the model."""
    return "---- BEGIN FUNCTION #1: " in text and "<function=example_function_name>" in text


def read_text_calls(messages: Sequence[Message], tools: Json) -> MessagesAndTools:
    """Turn calls and results that are written as text into tool calls and tool messages.

    The part of the prompt that teaches the notation is cut out.

    Args:
        messages: Messages in the order of the conversation.
        tools: Schemas of a column; None takes those of the prompt. An argument gets the type that its schema gives,
            and stays text without one.

    Raises:
        BadRowError: If a call, or the part of the prompt that teaches the notation, cannot be read exactly.
    """
    messages = list(messages)
    if messages and messages[0].role is not Role.ASSISTANT and teaches_text_calls(messages[0].content):
        prompt = _cut_tools(messages[0].content)
        tools = prompt.tools if tools is None else tools
        messages = with_first_content(messages, prompt.text)
    read = _with_calls_and_results(messages, parameter_types(tools))
    return MessagesAndTools(list(map(_without_example, read)), tools)


def _with_calls_and_results(messages: Sequence[Message], types: ParameterTypes) -> list[Message]:
    read: list[Message] = []
    for message in messages:
        after_call = bool(read and (read[-1].role is Role.TOOL or read[-1].tool_calls))
        if message.role is Role.ASSISTANT and not message.tool_calls:
            message = read_calls(message, types)
        elif message.role is Role.USER and after_call:
            message = _as_result(message)
        read.append(message)
    return read


def read_calls(message: Message, types: ParameterTypes) -> Message:
    """An assistant's message in which the calls at the end of the text are tool calls; without any, unchanged.

    Raises:
        BadRowError: If a call is broken, or text follows a call.
    """
    text = message.content
    start = text.find("<function=", end_of_thinking(text))
    if start < 0:
        return message
    calls, position = [], start
    while function := _element(_FUNCTION, "</function>", text, position):
        arguments = _arguments(function.text, types.get(function.name, {}))
        calls.append(ToolCall(name=function.name, arguments=arguments))
        position = function.end
    if position < len(text):
        rest = text[position : position + 60]
        raise BadRowError("bad_tool_call", f"text follows the calls, or a <function=...> is never closed: {rest!r}")
    return replace(message, content=text[:start].rstrip(), tool_calls=tuple(calls))


class _Element(NamedTuple):
    """A function or parameter in a text, from its opening tag through the white space behind its closing tag."""

    name: str
    text: str
    """Text between the tags."""
    end: int
    """Position behind the element."""


def _element(opening: re.Pattern[str], closing: str, text: str, position: int) -> _Element | None:
    """The element that begins at a position; None if none does, or if it is never closed."""
    tag = opening.match(text, position)
    end = -1 if tag is None else text.find(closing, tag.end())
    if tag is None or end < 0:
        return None
    gap = _GAP.match(text, end + len(closing))
    assert gap is not None, end
    return _Element(tag[1], text[tag.end() : end], gap.end())


def _arguments(text: str, types: Mapping[str, Json]) -> JsonObject:
    arguments: JsonObject = {}
    position = 0
    while argument := _element(_PARAMETER_TAG, "</parameter>", text, position):
        name, value = argument.name, argument.text
        if name in arguments:
            raise BadRowError("bad_arguments", f"<parameter={name}> appears twice in one call")
        # A value of several lines is written between two line breaks that do not belong to it.
        if len(value) > 1 and value.startswith("\n") and value.endswith("\n"):
            value = value[1:-1]
        arguments[name] = _typed(name, value, types.get(name))
        position = argument.end
    if text[position:].strip():
        raise BadRowError(
            "bad_arguments", f"there is text between the parameters of a call: {text[position:].strip()[:60]!r}"
        )
    return arguments


def _typed(name: str, text: str, json_type: Json) -> Json:
    python_type = _PYTHON_TYPES.get(json_type) if isinstance(json_type, str) else None
    if python_type is None:
        return text
    value = parse_literal(text, reason="bad_arguments", what=f"parameter {name}")
    if not isinstance(value, python_type) or (isinstance(value, bool) and python_type is not bool):
        raise BadRowError("bad_arguments", f"parameter {name} must be of type {json_type}, got {text[:60]!r}")
    return value


def _as_result(message: Message) -> Message:
    """Tool message with the result that a user message after a call holds; the message itself if it is no result."""
    if named := _RESULT.match(message.content):
        return Message(role=Role.TOOL, content=message.content[named.end() :], name=named[1])
    if message.content.startswith("OBSERVATION:\n"):
        return Message(role=Role.TOOL, content=message.content)
    return message


def _without_example(message: Message) -> Message:
    """The user's message, cut down to its task if OpenHands wrote an example of the notation before the task."""
    if message.role is not Role.USER or not message.content.startswith(_EXAMPLE):
        return message
    _, begin, rest = message.content.partition(_TASK)
    task, end, _ = rest.rpartition(_END_OF_TASK)
    if not begin or not end:
        raise BadRowError(
            "unclear_tools", "the end of the example before the task cannot be found; cut the example out"
        )
    return replace(message, content=task)


def parameter_types(tools: Json) -> ParameterTypes:
    """Types of the parameters of each tool, as far as the schemas give them.

    Raises:
        BadRowError: If an item is not the schema of a function.
    """
    return {name_of(tool): _types_of_one_tool(tool) for tool in parse_tools(tools)}


def _types_of_one_tool(tool: JsonObject) -> Mapping[str, Json]:
    function = tool["function"]
    assert isinstance(function, dict), tool
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: schema.get("type") if isinstance(schema, dict) else None for name, schema in properties.items()}


def _cut_tools(text: str) -> PromptAndTools:
    start = text.find(_BEGIN_LIST)
    position = start + _BEGIN_LIST.index("----")
    tools: list[Json] = []
    while begin := _BEGIN_FUNCTION.match(text, position):
        end = _END_FUNCTION.search(text, begin.end())
        if end is None:
            break
        tools.append(_read_tool(begin[1], text[begin.end() : end.start()]))
        position = end.end()
    if start < 0 or not _NOTATION.match(text, position):
        raise BadRowError(
            "unclear_tools",
            "the prompt's list of functions, or the text after it, does not have the wording of OpenHands; cut it out, "
            "and put the schemas into a column tools",
        )
    return PromptAndTools(text[:start].removesuffix("\n"), tools)


def _read_tool(name: str, text: str) -> JsonObject:
    """Schema of one function in the prompt's list, which gives names, types, descriptions and required parameters."""
    function: JsonObject = {"name": name}
    if text.endswith(_NO_PARAMETERS):
        function["description"] = text.removesuffix(_NO_PARAMETERS).removesuffix("\n")
        return {"type": "function", "function": function}
    description, found, listed = text.rpartition("\nParameters:")
    if not found:
        raise BadRowError("unclear_tools", f"function {name} in the prompt's list has no line 'Parameters:'")
    function["description"] = description
    is_json = listed.startswith(" {")
    function["parameters"] = decode_json(listed, what=name) if is_json else _read_parameters(name, listed)
    return {"type": "function", "function": function}


def _read_parameters(tool: str, text: str) -> JsonObject:
    properties: JsonObject = {}
    required: list[Json] = []
    found = list(_PARAMETER.finditer(text))
    if text[: found[0].start() if found else None].strip():
        raise BadRowError("unclear_tools", f"the parameters of function {tool} in the prompt are not a numbered list")
    for number, parameter in enumerate(found):
        end = found[number + 1].start() - 1 if number + 1 < len(found) else len(text)
        name, kind, status = parameter.groups()
        properties[name] = _read_parameter(kind, text[parameter.end() : end])
        required += [name] if status == "required" else []
    return {"type": "object", "properties": properties, "required": required}


def _read_parameter(kind: str, description: str) -> JsonObject:
    text, found, allowed = description.rpartition(_ENUM)
    if kind != "string" or not found or not allowed.endswith("`]"):
        return {"type": kind, "description": description}
    return {"type": kind, "description": text, "enum": list(allowed.removesuffix("`]").split("`, `"))}
