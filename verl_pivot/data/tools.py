"""Tool schemas: JSON -> the OpenAI form, and the nulls that parquet leaves in them and in arguments."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import jsonschema

from verl_pivot.data.storage import BadRowError, as_list, as_object, decode_json, encode_json
from verl_pivot.types import Json, JsonObject, Message

_MANGLED = "parquet gave structs of different rows the same keys; store this column as JSON strings and import again"


def parse_tools(obj: Json) -> tuple[JsonObject, ...]:
    """Tool schemas in the OpenAI form, from a list or its JSON string; Responses' flat form is nested.

    Raises:
        BadRowError: If one is no schema of a function, or two share a name.
    """
    if isinstance(obj, str):
        obj = decode_json(obj, reason="bad_tools", what="tools")
    return _parse_tools(encode_json(as_list(obj, "tools")))


@lru_cache(maxsize=512)  # most rows of a file share their tools: checked once, and one copy in memory
def _parse_tools(text: str) -> tuple[JsonObject, ...]:
    tools = tuple(_parse_tool(tool) for tool in as_list(decode_json(text), "tools"))
    names = [name_of(tool) for tool in tools]
    if doubles := {name for name in names if names.count(name) > 1}:
        raise BadRowError("bad_tools", f"two tools are named {min(doubles)!r}")
    return tools


def _parse_tool(obj: Json) -> JsonObject:
    tool = as_object(obj, "a tool")
    if tool.get("type") not in (None, "function"):
        raise BadRowError("bad_tools", f"a tool of type {tool['type']!r}; only 'function' is read")
    nested = tool.get("function")
    function = as_object(nested, "tool.function") if nested is not None else {**tool, "type": None}
    # Null means absent here: typed clients write every field that they know.
    function = {key: value for key, value in function.items() if value is not None}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise BadRowError("bad_tools", f"a tool needs a name, got {name!r}")
    if "parameters" in function:
        _check_parameters(name, function["parameters"])
    return {"type": "function", "function": function}


def _check_parameters(name: str, parameters: Json) -> None:
    if mangled := _null_schema(parameters, name):
        raise BadRowError("mangled_by_parquet", f"{mangled} is null in the schema of tool {name}: {_MANGLED}")
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise BadRowError("bad_tools", f"parameters of tool {name} must be a JSON schema of type object")
    try:
        jsonschema.Draft202012Validator.check_schema(parameters)
    except jsonschema.SchemaError as error:
        raise BadRowError("bad_tools", f"parameters of tool {name} are no JSON schema: {error.message}") from error


def _null_schema(schema: Json, path: str) -> str | None:
    """Path of a null where JSON schema has no null: what is left of a key that only other rows had."""
    if isinstance(schema, list):
        return next((found for value in schema if (found := _null_schema(value, path))), None)
    if not isinstance(schema, dict):
        return None
    for key, value in schema.items():
        if key in ("default", "const", "enum", "examples"):
            continue
        if found := f"{path}.{key}" if value is None else _null_schema(value, f"{path}.{key}"):
            return found
    return None


def text_schema(name: str, description: str, arguments: Mapping[str, str]) -> JsonObject:
    """Schema of a tool all of whose arguments are required texts.

    Args:
        name: Of the tool.
        description: For the policy.
        arguments: [name] description of each.
    """
    properties: JsonObject = {key: {"type": "string", "description": about} for key, about in arguments.items()}
    parameters: JsonObject = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def name_of(tool: JsonObject) -> str:
    """Name of a tool in the OpenAI form."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    return str(function["name"])


def check_arguments(messages: Sequence[Message], tools: Sequence[JsonObject]) -> None:
    """Refuse a null for an argument that its tool does not have: parquet made it from another call's.

    Raises:
        BadRowError: If there is one.
    """
    known = {name_of(tool): _argument_names(tool) for tool in tools}
    for call in (call for message in messages for call in message.tool_calls):
        names = known.get(call.name)
        nulls = [name for name, value in call.arguments.items() if value is None]
        if names is not None and (foreign := [name for name in nulls if name not in names]):
            raise BadRowError("mangled_by_parquet", f"{call.name}.{foreign[0]} is null and no argument: {_MANGLED}")


def _argument_names(tool: JsonObject) -> set[str] | None:
    """None where the schema leaves them open."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return set(properties) if isinstance(properties, dict) else None


def refuse_nulls(value: Json, path: str) -> None:
    """Refuse nulls in arguments that parquet kept as structs: a null there may be a key of another row.

    Raises:
        BadRowError: If there is one.
    """
    if value is None:
        raise BadRowError("mangled_by_parquet", f"{path} is null in a struct column: {_MANGLED}")
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        refuse_nulls(child, f"{path}.{key}")
