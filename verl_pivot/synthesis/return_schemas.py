"""Tools' schemas of their results -> FieldEdge: a field of a result that has the name and type of an argument."""

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from verl_pivot.data.tool_schemas import name_of
from verl_pivot.synthesis.data_flow import is_name
from verl_pivot.synthesis.tool_graph import MAX_NEIGHBOURS, EdgeOrigin, FieldEdge, parameters_of
from verl_pivot.types import Json, JsonObject
from verl_pivot.verifiers.tool_call_schemas import resolved

RETURNS = ("returns", "response", "outputSchema", "output_schema")
"""Keys of a function under which toolsets write the schema of its result; OpenAI's form has none."""

_MAX_SCHEMAS = 500
"""Schemas that are looked at in one result, whose schema may refer to itself."""
_SAY_LITTLE = frozenset(
    {"code", "count", "date", "id", "key", "name", "number", "status", "text", "time", "type", "value"}
)
"""Names that say what a value is only together with the object that has it: "id" in "user" is a "user_id"."""
_SEPARATORS = re.compile(r"[\W_]+")


class SchemaField(NamedTuple):
    """Field of a result, as its schema names it."""

    path: str
    type: Json
    """JSON type or list of types, as the schema writes it."""


def schema_edges(tools: Sequence[JsonObject]) -> list[FieldEdge]:
    """The edges between fields that tools' schemas show, in the order of the tools.

    A field gives an argument if both have the same type, and the same name without case and separators. A name such as
    "id" counts with the object before it, so that `user.id` gives `user_id`. A name that more than MAX_NEIGHBOURS tools
    take says too little, and gives no edge.

    Args:
        tools: Schemas in OpenAI's form; those without a schema of the result give nothing, only take.
    """
    takers: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for tool in tools:
        for argument, type_ in _arguments(tool):
            takers[_folded(argument), str(type_)].append((name_of(tool), argument))
    edges = []
    for tool in tools:
        for path, type_ in result_fields(tool):
            found = takers.get((_label(path), str(type_)), [])
            if len(found) <= MAX_NEIGHBOURS:
                edges += [FieldEdge(name_of(tool), path, *taker, EdgeOrigin.SCHEMA) for taker in found]
    return edges


def result_fields(tool: JsonObject) -> list[SchemaField]:
    """The fields of a tool's result that hold one value, from the outermost on; none if no schema names them."""
    function = tool["function"]
    assert isinstance(function, dict), tool
    schema = next((function[key] for key in RETURNS if isinstance(function.get(key), dict)), None)
    if schema is None:
        return []
    found = []
    left: deque[tuple[str, Json]] = deque([("", schema)])
    for _ in range(_MAX_SCHEMAS):
        if not left:
            break
        path, part = left.popleft()
        whole = resolved(part, schema if isinstance(schema, dict) else {})
        left.extend(_inner(whole, path))
        if path and not isinstance(whole.get("properties"), dict) and "items" not in whole and "type" in whole:
            found.append(SchemaField(path, whole["type"]))
    return found


def _inner(schema: JsonObject, path: str) -> Iterator[tuple[str, Json]]:
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, child in properties.items():
            if not is_name(name):  # results are read as if such a key were data
                continue
            yield f"{path}.{name}".lstrip("."), child
    if "items" in schema:
        yield path, schema["items"]


def _arguments(tool: JsonObject) -> Iterator[tuple[str, Json]]:
    parameters = parameters_of(tool)
    properties = parameters.get("properties")
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        whole = resolved(schema, parameters)
        if _folded(name) not in _SAY_LITTLE and "." not in name and "type" in whole:
            yield name, whole["type"]


def _label(path: str) -> str:
    """What a field's value is called as an argument: "userid" for `users.id`."""
    *objects, name = path.split(".")
    if _folded(name) in _SAY_LITTLE and objects:
        name = objects[-1].removesuffix("s") + name
    return _folded(name)


def _folded(name: str) -> str:
    return _SEPARATORS.sub("", name).casefold()
