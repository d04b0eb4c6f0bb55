"""Schemas of tools' results -> FieldEdges: a field of a result has the name and the type of an argument."""

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
"""Keys of a function under which toolsets write the schema of its result; OpenAI's format has no such key."""

_MAX_SCHEMAS = 500
"""Maximum number of nested schemas that are read in one result, because a schema may refer to itself."""
_SAY_LITTLE = frozenset(
    {"code", "count", "date", "id", "key", "name", "number", "status", "text", "time", "type", "value"}
)
"""Names that identify a value only together with the object that has it: "id" in "user" is a "user_id"."""
_SEPARATORS = re.compile(r"[\W_]+")


class SchemaField(NamedTuple):
    """Field of a result, as its schema describes it."""

    path: str
    type: Json
    """JSON type or list of types, as the schema writes it."""


def schema_edges(tools: Sequence[JsonObject]) -> list[FieldEdge]:
    """The edges between fields that tools' schemas show, in the order of the tools.

    There is an edge from a field to an argument if both have the same type, and the same name regardless of case and
    separators. A name such as "id" is combined with the object that has it, so that `user.id` gives `user_id`. A name
    that is an argument of more than MAX_NEIGHBOURS tools is too common, and gives no edge.

    Args:
        tools: Schemas in OpenAI's format; a tool without a result schema gets edges only to its arguments.
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
    """The fields of a tool's result that hold a single value, outermost first; [] if the result has no schema."""
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
            if not is_name(name):  # such a key counts as data when results are read
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
    """Normalized name of an argument that takes a field's value: "userid" for `users.id`."""
    *objects, name = path.split(".")
    if _folded(name) in _SAY_LITTLE and objects:
        name = objects[-1].removesuffix("s") + name
    return _folded(name)


def _folded(name: str) -> str:
    return _SEPARATORS.sub("", name).casefold()
