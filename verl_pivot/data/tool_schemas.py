"""Tool schemas: parsing JSON into OpenAI's form, checking arguments, and finding the nulls that parquet adds."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import jsonschema
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from verl_pivot.data.json_values import BadRowError, all_differ, as_list, as_object, decode_json, encode_json
from verl_pivot.types import Json, JsonObject, Message

_MANGLED = "parquet adds keys of other rows to a struct as null; store this column as JSON strings and import again"

_OTHER_NAMES = ("input_schema", "inputSchema")
"""Names of `parameters` at Anthropic and in MCP; a tool without parameters takes any arguments."""


def parse_tools(obj: Json) -> tuple[JsonObject, ...]:
    """Tool schemas in OpenAI's nested form, from a list in this form or in the flat one of the Responses API.

    The list may be a JSON string.

    Raises:
        BadRowError: If an item is not the schema of a function, or two share a name.
    """
    if isinstance(obj, str):
        obj = decode_json(obj, reason="bad_tools", what="tools")
    return _parse_tools(encode_json(as_list(obj, "tools")))


@lru_cache(maxsize=512)  # most rows of a file share their tools: check them once and keep one copy
def _parse_tools(text: str) -> tuple[JsonObject, ...]:
    tools = tuple(_parse_tool(tool) for tool in as_list(decode_json(text), "tools"))
    names = [name_of(tool) for tool in tools]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise BadRowError("bad_tools", f"two tools are named {min(repeated)!r}")
    return tools


def _parse_tool(obj: Json) -> JsonObject:
    tool = as_object(obj, "a tool")
    if tool.get("type") not in (None, "function"):
        raise BadRowError("bad_tools", f"a tool has type {tool['type']!r}; only 'function' is read")
    nested = tool.get("function")
    function = as_object(nested, "tool.function") if nested is not None else {**tool, "type": None}
    # Null means absent, since typed clients write every field that they know.
    function = {key: value for key, value in function.items() if value is not None}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise BadRowError("bad_tools", f"a tool needs a name, got {name!r}")
    if "parameters" in function:
        _check_parameters(name, function["parameters"])
    elif other := next((key for key in _OTHER_NAMES if key in function), None):
        raise BadRowError("bad_tools", f"tool {name} has no parameters but {other}: rename it to parameters")
    return {"type": "function", "function": function}


def _check_parameters(name: str, parameters: Json) -> None:
    if mangled := _null_schema(parameters, name):
        raise BadRowError("mangled_by_parquet", f"{mangled} is null in the schema of tool {name}: {_MANGLED}")
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise BadRowError("bad_tools", f"parameters of tool {name} must be a JSON schema of type object")
    try:
        jsonschema.Draft202012Validator.check_schema(parameters)
    except jsonschema.SchemaError as error:
        raise BadRowError("bad_tools", f"parameters of tool {name} are not a JSON schema: {error.message}") from error


def _null_schema(schema: Json, path: str) -> str | None:
    """Path of a null where JSON schema allows none: parquet leaves it for a key that only other rows have."""
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


def name_of(tool: JsonObject) -> str:
    """Name of a tool in OpenAI's form."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    return str(function["name"])


def text_schema(name: str, description: str, arguments: Mapping[str, str]) -> JsonObject:
    """Schema of a tool whose arguments are all text and all required.

    Args:
        name: Name of the tool.
        description: Description of the tool, for the policy.
        arguments: {name of an argument: its description}.
    """
    properties: JsonObject = {key: {"type": "string", "description": about} for key, about in arguments.items()}
    parameters: JsonObject = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


class ArgumentProblem(NamedTuple):
    """Why the arguments of a call do not fit the schema of their tool."""

    detail: str
    """Explanation for people."""
    is_missing: bool = False
    """Whether a required argument is missing."""
    is_unusable: bool = False
    """Whether the schema cannot be applied to these arguments."""
    is_schema_broken: bool = False
    """Whether the schema cannot be applied to any arguments, which is not the caller's fault."""


def _unique_items(validator: Validator, is_unique: bool, value: Json, schema: object) -> Iterator[ValidationError]:
    if is_unique and isinstance(value, list) and not all_differ(value):
        yield ValidationError(f"{value!r} has non-unique elements")


# The check of jsonschema itself takes time quadratic in the number of items.
_Validator = extend(Draft202012Validator, {"uniqueItems": _unique_items})  # type: ignore[no-untyped-call]


class ToolSchema:
    """Schema of one tool's parameters. References are resolved only inside the schema, never over the network."""

    def __init__(self, parameters: JsonObject) -> None:
        self._validator = _Validator(parameters, registry=Registry())
        named = parameters.get("properties")
        is_open = "additionalProperties" in parameters or "patternProperties" in parameters
        self._named = set(named) if isinstance(named, dict) and not is_open else None

    def problem(self, arguments: JsonObject) -> ArgumentProblem | None:
        """The first problem that the schema finds with the arguments; None if it accepts them."""
        try:
            error: ValidationError | None = next(self._validator.iter_errors(arguments), None)
        except (Unresolvable, re.error) as failure:
            return ArgumentProblem(
                f"its schema cannot be applied: {failure!r}", is_unusable=True, is_schema_broken=True
            )
        except (RecursionError, ArithmeticError) as failure:  # arguments nested too deeply, or a number too large
            return ArgumentProblem(f"its schema cannot be applied to them: {failure!r}", is_unusable=True)
        if error is None:
            return None
        is_missing = error.validator == "required" and not error.path
        return ArgumentProblem(f"{error.json_path}: {error.message}", is_missing=is_missing)

    def knows(self, argument: str) -> bool:
        """Whether the schema names this argument or allows any name."""
        return self._named is None or argument in self._named

    def first_unknown(self, arguments: JsonObject) -> str | None:
        """Name of the first argument that the schema does not name; None if there is none or any name is allowed."""
        return None if self._named is None else next((name for name in arguments if name not in self._named), None)


@lru_cache(maxsize=512)  # most rows of a file share their tools
def schemas_by_name(tools: str) -> dict[str, ToolSchema]:
    """{name of a tool: its schema}, from a JSON list of tools in OpenAI's form."""
    schemas = {}
    listed = decode_json(tools)
    assert isinstance(listed, list), tools
    for tool in (as_object(item, "a tool") for item in listed):
        parameters = as_object(tool["function"], "a function").get("parameters", {})
        schemas[name_of(tool)] = ToolSchema(as_object(parameters, "parameters"))
    return schemas


def refuse_nulls(value: Json, path: str) -> None:
    """Refuse a null in arguments that parquet stored as a struct: it may be a key of another row.

    Raises:
        BadRowError: If the value holds a null; `path` says where the value is.
    """
    if value is None:
        raise BadRowError("mangled_by_parquet", f"{path} is null in a struct column: {_MANGLED}")
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        refuse_nulls(child, f"{path}.{key}")


def refuse_foreign_nulls(messages: Sequence[Message], tools: Sequence[JsonObject]) -> None:
    """Refuse a null in an argument that the tool does not have, which parquet copied from the keys of another call.

    Raises:
        BadRowError: If a call has such an argument.
    """
    known = {name_of(tool): _argument_names(tool) for tool in tools}
    for call in (call for message in messages for call in message.tool_calls):
        names = known.get(call.name)
        nulls = [name for name, value in call.arguments.items() if value is None]
        if names is not None and (foreign := [name for name in nulls if name not in names]):
            detail = f"{call.name}.{foreign[0]} is null, and {call.name} has no such argument: {_MANGLED}"
            raise BadRowError("mangled_by_parquet", detail)


def _argument_names(tool: JsonObject) -> set[str] | None:
    """Names of a tool's arguments; None if its schema does not list them."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return set(properties) if isinstance(properties, dict) else None
