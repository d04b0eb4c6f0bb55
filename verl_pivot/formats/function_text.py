"""Calls that OpenHands and SWE-smith write as text, `<function=name><parameter=...>` -> ToolCall."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from verl_pivot.data.json_values import BadRowError, decode_json
from verl_pivot.data.tool_schemas import name_of, parse_tools
from verl_pivot.formats.columns import after_thinking
from verl_pivot.formats.literals import value_of
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

_PROMPT = "You have access to the following functions:\n\n---- BEGIN FUNCTION #1: "
_BEGIN = re.compile(r"---- BEGIN FUNCTION #\d+: (\S+) ----\nDescription: ")
_END = re.compile(r"\n---- END FUNCTION #\d+ ----\s*")
_NOTATION = re.compile(
    r"If you choose to call a function ONLY reply in the following format with NO suffix:\n.*?"
    r"<IMPORTANT>\nReminder:\n(?:- [^\n]*\n)*- [^\n]*\n?(?:</IMPORTANT>)?\s*\Z",
    re.DOTALL,
)
_PARAMETER = re.compile(r"^  \(\d+\) (\S+) \((\w+), (required|optional)\): ", re.MULTILINE)
_NO_PARAMETERS = "No parameters are required for this function."
_ENUM = "\nAllowed values: [`"
_FUNCTION = re.compile(r"<function=([^<>\n]+)>(.*?)</function>\s*", re.DOTALL)
_ARGUMENT = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>\s*", re.DOTALL)
_RESULT = re.compile(r"EXECUTION RESULT of \[([^\]\n]*)\]:\n")
_EXAMPLE = "Here's a running example of how to perform a task with the "
_TASK = "--------------------- NEW TASK DESCRIPTION ---------------------\n"
_END_OF_TASK = "\n--------------------- END OF NEW TASK DESCRIPTION ---------------------"
_KINDS = {"integer": int, "number": int | float, "boolean": bool, "array": list, "object": dict}

Types: TypeAlias = Mapping[str, Mapping[str, Json]]
"""[tool][parameter] name of its JSON type."""


class Read(NamedTuple):
    messages: list[Message]
    tools: Json


def is_prompt(text: str) -> bool:
    """Whether it teaches this notation."""
    return "---- BEGIN FUNCTION #1: " in text and "<function=example_function_name>" in text


def read_text_calls(messages: Sequence[Message], tools: Json) -> Read:
    """Calls and results in text become those of the normal form, and what taught the notation is cut out.

    Args:
        messages: In the order of the conversation.
        tools: Schemas of a column; None takes those of the prompt. Values get the types that these say,
            and stay text where they say none.

    Raises:
        BadRowError: If a call, or what teaches the notation, cannot be read exactly.
    """
    messages = list(messages)
    if messages and messages[0].role is not Role.ASSISTANT and is_prompt(messages[0].content):
        prompt = _cut_tools(messages[0].content)
        tools = prompt.tools if tools is None else tools
        messages[0:1] = [replace(messages[0], content=prompt.text)] if prompt.text else []
    return Read(list(map(_without_example, _turns(messages, types_of(tools)))), tools)


def _turns(messages: Sequence[Message], types: Types) -> list[Message]:
    read: list[Message] = []
    for message in messages:
        after_call = bool(read and (read[-1].role is Role.TOOL or read[-1].tool_calls))
        if message.role is Role.ASSISTANT and not message.tool_calls:
            message = read_calls(message, types)
        elif message.role is Role.USER and after_call:
            message = _result(message)
        read.append(message)
    return read


def read_calls(message: Message, types: Types) -> Message:
    """An assistant's text with the calls at its end read; text without any as it is.

    Raises:
        BadRowError: If a call is broken, or text follows one.
    """
    text = message.content
    start = text.find("<function=", after_thinking(text))
    if start < 0:
        return message
    calls, position = [], start
    while function := _FUNCTION.match(text, position):
        calls.append(ToolCall(name=function[1], arguments=_arguments(function[2], types.get(function[1], {}))))
        position = function.end()
    if position < len(text):
        raise BadRowError("bad_tool_call", f"after or within <function=...> stands {text[position : position + 60]!r}")
    return replace(message, content=text[:start].rstrip(), tool_calls=tuple(calls))


def _arguments(text: str, types: Mapping[str, Json]) -> JsonObject:
    arguments: JsonObject = {}
    position = 0
    while argument := _ARGUMENT.match(text, position):
        name, value = argument[1], argument[2]
        if name in arguments:
            raise BadRowError("bad_arguments", f"<parameter={name}> stands twice in a call")
        # A value of several lines begins and ends with a line break that is not its own.
        if len(value) > 1 and value.startswith("\n") and value.endswith("\n"):
            value = value[1:-1]
        arguments[name] = _typed(name, value, types.get(name))
        position = argument.end()
    if text[position:].strip():
        raise BadRowError("bad_arguments", f"between the parameters of a call stands {text[position:][:60]!r}")
    return arguments


def _typed(name: str, text: str, kind: Json) -> Json:
    expected = _KINDS.get(kind) if isinstance(kind, str) else None
    if expected is None:
        return text
    value = value_of(text, reason="bad_arguments", what=f"parameter {name}")
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise BadRowError("bad_arguments", f"parameter {name} is of type {kind}, and not {text[:60]!r}")
    return value


def _result(message: Message) -> Message:
    """What a user's message after a call is: its result, where it says so."""
    if named := _RESULT.match(message.content):
        return Message(role=Role.TOOL, content=message.content[named.end() :], name=named[1])
    if message.content.startswith("OBSERVATION:\n"):
        return Message(role=Role.TOOL, content=message.content)
    return message


def _without_example(message: Message) -> Message:
    """The task alone, where OpenHands wrote an example of the notation before it."""
    if message.role is not Role.USER or not message.content.startswith(_EXAMPLE):
        return message
    _, begin, rest = message.content.partition(_TASK)
    task, end, _ = rest.rpartition(_END_OF_TASK)
    if not begin or not end:
        raise BadRowError("unclear_tools", "the example before the task has no clear end")
    return replace(message, content=task)


def types_of(tools: Json) -> Types:
    """The types of the parameters of each tool, as far as their schemas say.

    Raises:
        BadRowError: If one is no schema.
    """
    return {name_of(tool): _parameter_types(tool) for tool in parse_tools(tools)}


def _parameter_types(tool: JsonObject) -> Mapping[str, Json]:
    function = tool["function"]
    assert isinstance(function, dict), tool
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: schema.get("type") if isinstance(schema, dict) else None for name, schema in properties.items()}


class _FunctionPrompt(NamedTuple):
    text: str
    tools: list[Json]


def _cut_tools(text: str) -> _FunctionPrompt:
    start = text.find(_PROMPT)
    position = start + _PROMPT.index("----")
    tools: list[Json] = []
    while begin := _BEGIN.match(text, position):
        end = _END.search(text, begin.end())
        if end is None:
            break
        tools.append(_read_tool(begin[1], text[begin.end() : end.start()]))
        position = end.end()
    if start < 0 or not _NOTATION.match(text, position):
        raise BadRowError(
            "unclear_tools", "the prompt's list of functions, or what follows it, is not as OpenHands has it"
        )
    return _FunctionPrompt(text[:start].removesuffix("\n"), tools)


def _read_tool(name: str, text: str) -> JsonObject:
    """One of the prompt's list as a schema: names, types, descriptions and whether required; it says no more."""
    function: JsonObject = {"name": name}
    if text.endswith(_NO_PARAMETERS):
        function["description"] = text.removesuffix(_NO_PARAMETERS).removesuffix("\n")
        return {"type": "function", "function": function}
    description, found, listed = text.rpartition("\nParameters:")
    if not found:
        raise BadRowError("unclear_tools", f"function {name} of the prompt's list has no parameters")
    function["description"] = description
    as_json = listed.startswith(" {")
    function["parameters"] = decode_json(listed, what=f"{name}") if as_json else _read_parameters(name, listed)
    return {"type": "function", "function": function}


def _read_parameters(tool: str, text: str) -> JsonObject:
    properties: JsonObject = {}
    required: list[Json] = []
    found = list(_PARAMETER.finditer(text))
    if text[: found[0].start() if found else None].strip():
        raise BadRowError("unclear_tools", f"the parameters of function {tool} are no list")
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
