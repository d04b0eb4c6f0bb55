"""JSON schema of a tool's arguments -> the schema of one value, with $ref, allOf, anyOf and oneOf resolved."""

from collections.abc import Iterable

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
