"""JSON schema of a tool's arguments -> the schema of one value, with $ref, allOf, anyOf and oneOf resolved."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from verl_pivot.types import Json, JsonObject

_NO_SCHEMA: JsonObject = {}
_REFERRING = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_MAX_STEPS = 16
"""Most references and combinations that are followed from one schema, since a schema may refer to itself."""


def resolved(schema: Json, root: JsonObject) -> JsonObject:
    """The schema of a value; {} if there is none, or it is not clear which of several applies.

    Args:
        schema: A schema, perhaps {"$ref"}, {"allOf"} or a choice between null and one other schema. The keys beside
            the reference are added to those of the schema found. Anything else than an object is no schema.
        root: Schema that holds what {"$ref": "#/..."} refers to.
    """
    found = schema if isinstance(schema, dict) else _NO_SCHEMA
    for _ in range(_MAX_STEPS):
        if _REFERRING.isdisjoint(found):
            return found
        beside = {key: value for key, value in found.items() if key not in _REFERRING}
        found = _joined([*_parts(found, root), beside])
    return _NO_SCHEMA


def required_names(schema: JsonObject) -> frozenset[str]:
    """Properties that a schema of an object requires."""
    names = schema.get("required")
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


class GivenValue(NamedTuple):
    """A value that a call has, written or by default."""

    value: Json


def value_at(arguments: Mapping[str, Json], keys: Sequence[str], root: JsonObject) -> GivenValue | None:
    """The value at some keys within objects, or its default; None if it is missing, or required and left out.

    Args:
        arguments: Arguments of a call.
        keys: The keys from the outermost object on.
        root: JSON schema of the arguments; {} if there is none.
    """
    value: Json = {**arguments}
    schema = root
    for key in keys:
        outer, schema = resolved(schema, root), properties_of(schema, root).get(key, _NO_SCHEMA)
        if not isinstance(value, dict):
            return None
        if key in value:
            value = value[key]
        elif "default" in schema and key not in required_names(outer):
            value = schema["default"]
        else:
            return None
    return GivenValue(value)


def is_known(path: str, tools: Mapping[str, JsonObject]) -> bool:
    """Whether a tool may have an argument "tool.argument.key", within objects and items of arrays.

    Args:
        path: Name of the argument.
        tools: JSON schema of each tool's arguments, by the tool's name.
    """
    return any(
        path.startswith(f"{name}.") and may_have(path[len(name) + 1 :], schema, schema, in_arrays=True)
        for name, schema in tools.items()
    )


def has_at(value: Json, path: str) -> bool:
    """Whether a value has one at a path such as "key.key", within objects and items of arrays."""
    if isinstance(value, list):
        return any(has_at(item, path) for item in value)
    return isinstance(value, dict) and any(
        path == name or (path.startswith(f"{name}.") and has_at(inner, path[len(name) + 1 :]))
        for name, inner in value.items()
    )


def may_have(path: str, schema: JsonObject, root: JsonObject, *, in_arrays: bool = False) -> bool:
    """Whether a value of a schema may have one at a path such as "key.key"; True for an object without listed keys.

    Args:
        path: Keys within objects, and with `in_arrays` also within the items of arrays.
        schema: Schema of the value.
        root: Schema that holds what {"$ref": "#/..."} refers to.
        in_arrays: Whether the path may lead through arrays.
    """
    if in_arrays and _is_array(found := resolved(schema, root)):
        items = resolved(found.get("items"), root)
        return not items or _is_array(items) or may_have(path, items, root, in_arrays=True)
    properties, kind = properties_of(schema, root), resolved(schema, root).get("type", "object")
    if not properties:
        return "object" in kind if isinstance(kind, list) else kind == "object"
    return any(
        path == name
        or (path.startswith(f"{name}.") and may_have(path[len(name) + 1 :], inner, root, in_arrays=in_arrays))
        for name, inner in properties.items()
    )


def properties_of(schema: JsonObject, root: JsonObject) -> Mapping[str, JsonObject]:
    """Schema of each property of an object; {} if the schema lists none."""
    properties = resolved(schema, root).get("properties")
    return {name: resolved(each, root) for name, each in properties.items()} if isinstance(properties, dict) else {}


def parameters_by_name(tools: Sequence[JsonObject]) -> Mapping[str, JsonObject]:
    """JSON schema of each tool's arguments, by the tool's name."""
    found = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(parameters := function.get("parameters"), dict):
            found[str(function.get("name"))] = parameters
    return found


def _is_array(schema: JsonObject) -> bool:
    return "items" in schema or schema.get("type") == "array"


def _parts(schema: JsonObject, root: JsonObject) -> list[JsonObject]:
    """The schemas to which the keys of `schema` refer; a value must fulfil all of them."""
    reference, every = schema.get("$ref"), schema.get("allOf")
    found = [_at(reference, root)] if isinstance(reference, str) else []
    if isinstance(every, list):
        found += [part for part in every if isinstance(part, dict)]
    for choices in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(choices, list):
            others = [part for part in choices if isinstance(part, dict) and part.get("type") != "null"]
            found += others if len(others) == 1 else [_NO_SCHEMA]
    return found


def _joined(schemas: Iterable[JsonObject]) -> JsonObject:
    """One schema with the keys of all; properties and required names are merged, other keys come from the last one."""
    found: JsonObject = {}
    for schema in schemas:
        properties, required = found.get("properties"), found.get("required")
        found = {**found, **schema}
        if isinstance(properties, dict) and isinstance(added := schema.get("properties"), dict):
            found["properties"] = {**properties, **added}
        if isinstance(required, list) and isinstance(more := schema.get("required"), list):
            found["required"] = [*required, *more]
    return found


def _at(reference: str, root: JsonObject) -> JsonObject:
    """The schema at a JSON pointer into `root`, such as "#/$defs/Address"."""
    found: Json = root
    if not reference.startswith("#"):
        return _NO_SCHEMA
    for name in reference.lstrip("#/").split("/") if reference.strip("#/") else ():
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else _NO_SCHEMA
