"""Signature and docstring of a Python function -> the schema of a tool, and checked arguments of its calls."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import pydantic

from verl_pivot.data.json_values import BadRowError
from verl_pivot.data.tool_schemas import parse_tools
from verl_pivot.errors import ConfigError, UserCodeError
from verl_pivot.tools.contract import ToolError
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import ErrorKind, JsonObject
from verl_pivot.validation import first_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSignature:
    """Name, schema and parameters of a function that serves as a tool."""

    name: str
    schema: JsonObject
    """Schema of the tool, in the OpenAI form."""
    arguments: type[pydantic.BaseModel]
    """Model of the parameters that the policy fills in."""
    workspace_parameter: str | None
    """Name of the parameter that gets the rollout's workspace, hidden from the policy; None if there is none."""

    def values(self, arguments: JsonObject, workspace: Workspace) -> dict[str, Any]:
        """Keyword arguments for a call of the function.

        Raises:
            ToolError: If an argument does not have its parameter's type.
        """
        try:
            checked = self.arguments.model_validate(arguments)
        except pydantic.ValidationError as error:
            raise ToolError(first_problem(error), ErrorKind.INVALID_ARGUMENT) from error
        values = {name: getattr(checked, name) for name in checked.model_fields_set}
        if self.workspace_parameter is not None:
            values[self.workspace_parameter] = workspace
        return values


def read_signature(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    owner: str = "",
    is_method: bool = False,
) -> ToolSignature:
    """Read the signature of a tool from a function's type hints and the first paragraph of its docstring.

    Args:
        function: Any function; a parameter of type `Workspace` is filled in and hidden from the policy.
        name: The tool's name, if it is not the function's.
        description: The tool's description, if it is not the docstring's first paragraph.
        owner: Class of a method, for messages, such as "environment Shop".
        is_method: Whether the first parameter is `self`.

    Raises:
        ConfigError: If a parameter has no type hint, cannot be given by name, or has a type without a JSON schema.
    """
    name = name or function.__name__
    arguments, workspace_parameter = _arguments_model(function, name, f"{owner}, tool {name}".lstrip(", "), is_method)
    parameters = arguments.model_json_schema()
    parameters.pop("title", None)
    for value in parameters.get("properties", {}).values():
        value.pop("title", None)
    about = description or (inspect.getdoc(function) or "").partition("\n\n")[0]
    schema: JsonObject = {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": parameters},
    }
    return ToolSignature(name=name, schema=schema, arguments=arguments, workspace_parameter=workspace_parameter)


def checked_schemas(listed: Sequence[JsonObject], place: str) -> list[JsonObject]:
    """Schemas in the OpenAI form of tools that an environment lists, in this form or in that of the Responses API.

    Args:
        listed: The list of the environment.
        place: Description of its code, for messages: "environment Shop.tools".

    Raises:
        UserCodeError: If an item is no schema of a tool.
    """
    try:
        return [schema for each in listed for schema in parse_tools([each])]
    except BadRowError as error:
        raise UserCodeError(f"{place} lists what is no schema of a tool: {error}") from error


def _arguments_model(
    function: Callable[..., Any], name: str, place: str, is_method: bool
) -> tuple[type[pydantic.BaseModel], str | None]:
    """The function's parameters as a model, and the name of the one that takes the workspace."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigError(f"{place}: a type hint cannot be resolved: {error}; import what it names") from error
    parameters = list(inspect.signature(function).parameters.values())[is_method:]
    workspace, fields = None, {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"{place}: parameter {parameter.name!r} cannot be given by name; make it a plain parameter"
            )
        if parameter.name not in hints:
            raise ConfigError(f"{place}: parameter {parameter.name!r} needs a type hint, from which the schema is made")
        if hints[parameter.name] is Workspace:
            workspace = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = _checked_field(place, parameter.name, hints[parameter.name], default)
    config = pydantic.ConfigDict(extra="forbid")
    return pydantic.create_model(name, __config__=config, **fields), workspace  # type: ignore[call-overload]


def _checked_field(place: str, name: str, hint: Any, default: object) -> tuple[Any, object]:
    """Type and default of a parameter, as `pydantic.create_model` takes them."""
    try:
        pydantic.TypeAdapter(hint).json_schema()
    except pydantic.errors.PydanticUserError as error:
        raise ConfigError(
            f"{place}: parameter {name!r} has a type without a JSON schema: {error.message.splitlines()[0]}"
        ) from error
    return hint, default
