"""A tool's schema and the arguments of a call -> what is wrong with them."""

import re
from functools import lru_cache
from typing import NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from verl_pivot.data.storage import as_object, decode_json
from verl_pivot.data.tools import name_of
from verl_pivot.types import JsonObject


class ArgumentProblem(NamedTuple):
    """Why a call's arguments do not fit."""

    detail: str
    is_missing: bool = False
    """A required argument is not there."""
    unusable: bool = False
    """The schema cannot be applied to them."""
    is_of_schema: bool = False
    """Nor to any others, which is not the caller's fault."""


class ToolSchema:
    """A tool's parameters; references are resolved inside of them alone, never over the network."""

    def __init__(self, parameters: JsonObject) -> None:
        self._validator = Draft202012Validator(parameters, registry=Registry())
        named = parameters.get("properties")
        is_open = "additionalProperties" in parameters or "patternProperties" in parameters
        self._named = set(named) if isinstance(named, dict) and not is_open else None

    def problem(self, arguments: JsonObject) -> ArgumentProblem | None:
        """The first that the schema finds; None if it accepts them."""
        try:
            error: ValidationError | None = next(self._validator.iter_errors(arguments), None)
        except (Unresolvable, re.error) as failure:
            return ArgumentProblem(f"its schema cannot be applied: {failure!r}", unusable=True, is_of_schema=True)
        except (RecursionError, ArithmeticError) as failure:  # nested too deeply, or a number beyond all bounds
            return ArgumentProblem(f"its schema cannot be applied to them: {failure!r}", unusable=True)
        if error is None:
            return None
        is_missing = error.validator == "required" and not error.path
        return ArgumentProblem(f"{error.json_path}: {error.message}", is_missing=is_missing)

    def names(self, argument: str) -> bool:
        """Whether the schema knows an argument, or leaves names open."""
        return self._named is None or argument in self._named

    def unnamed(self, arguments: JsonObject) -> str | None:
        """The first argument that the schema does not know; None where it leaves names open."""
        return None if self._named is None else next((name for name in arguments if name not in self._named), None)


@lru_cache(maxsize=512)  # most rows of a file share their tools
def tool_schemas(tools: str) -> dict[str, ToolSchema]:
    """{name: schema} of a JSON list of tools in the OpenAI form."""
    schemas = {}
    listed = decode_json(tools)
    assert isinstance(listed, list), tools
    for tool in (as_object(item, "a tool") for item in listed):
        parameters = as_object(tool["function"], "a function").get("parameters", {})
        schemas[name_of(tool)] = ToolSchema(as_object(parameters, "parameters"))
    return schemas
