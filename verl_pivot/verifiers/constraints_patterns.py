"""Regular expressions and JSON schemas of rows -> checks of a text of the policy, in time linear in its length."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonschema
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError as SchemaMismatchError
from jsonschema.protocols import Validator
from jsonschema.validators import extend
from pydantic import ValidationError
from pydantic_core import SchemaError, SchemaValidator, core_schema
from referencing import Registry

from verl_pivot.data.json_values import all_differ
from verl_pivot.types import Json

_ESCAPE = re.compile(r"\\.", re.DOTALL)
_DIGITS = {"\\d": "[0-9]", "\\D": "[^0-9]"}
"""{class of digits: the same class in ASCII}; each form may also stand within another class."""


@lru_cache(maxsize=1024)
def compiled_pattern(pattern: str) -> SchemaValidator:
    r"""A regular expression compiled by Rust's engine, which never backtracks: no lookaround, no backreferences.

    `\d` is a digit from 0 to 9, as in JSON schemas, and no digit of another script.

    Raises:
        ValueError: If the engine cannot read the pattern, or the pattern is too large.
    """
    try:
        plain = _ESCAPE.sub(lambda escape: _DIGITS.get(escape[0], escape[0]), pattern)
        return SchemaValidator(core_schema.str_schema(pattern=plain, regex_engine="rust-regex"))
    except SchemaError as error:
        problem = str(error).strip().splitlines()[-1].removeprefix("error: ")
        raise ValueError(
            f"{pattern!r:.200} is not a regular expression without lookaround and backreferences: {problem}"
        ) from error


def contains_match(pattern: str, text: str) -> bool:
    """Whether a regular expression matches anywhere in a text."""
    try:
        compiled_pattern(pattern).validate_python(text)
    except ValidationError:
        return False
    return True


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse an invalid JSON schema, or one with a pattern that cannot be matched in linear time.

    Raises:
        ValueError: With the place and the problem.
    """
    try:
        Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"not a valid JSON schema: {error.json_path}: {error.message[:300]}") from error
    for pattern in _patterns(schema):
        compiled_pattern(pattern)


def schema_problem(schema: Mapping[str, Any], value: Json) -> str | None:
    """The first way in which a value does not fulfil a schema; None if it does.

    Raises:
        RecursionError: If the schema refers to itself without end.
        referencing.exceptions.Unresolvable: If the schema refers to something outside it; nothing is fetched.
    """
    validator = _LinearValidator(schema, registry=Registry())
    error = next(validator.iter_errors(value), None)
    return None if error is None else f"{error.json_path}: {error.message}"


def _patterns(schema: object) -> Iterator[str]:
    """Every regular expression in a schema."""
    if isinstance(schema, Mapping):
        for name, value in schema.items():
            if name == "pattern" and isinstance(value, str):
                yield value
            elif name == "patternProperties" and isinstance(value, Mapping):
                yield from value
            yield from _patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _patterns(value)


def _pattern(validator: Validator, pattern: str, value: Any, schema: Any) -> Iterator[SchemaMismatchError]:
    if validator.is_type(value, "string") and not contains_match(pattern, value):
        yield SchemaMismatchError(f"{value[:200]!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], value: Any, schema: Any
) -> Iterator[SchemaMismatchError]:
    if not validator.is_type(value, "object"):
        return
    for pattern, inner in patterns.items():
        for name, each in value.items():
            if contains_match(pattern, name):
                yield from validator.descend(each, inner, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, inner: Any, value: Any, schema: Mapping[str, Any]
) -> Iterator[SchemaMismatchError]:
    if validator.is_type(value, "object"):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name in value:
            if name not in known and not _matches_one(patterns, name):
                yield from _unknown_key(validator, inner, value, name)


def _unevaluated_properties(validator: Any, inner: Any, value: Any, schema: Any) -> Iterator[SchemaMismatchError]:
    if validator.is_type(value, "object"):
        evaluated = set(_evaluated_keys(validator, schema, value))
        for name in value:  # in their order, so that the same text has the same reason
            if name not in evaluated:
                yield from _unknown_key(validator, inner, value, name)


def _unknown_key(validator: Any, inner: Any, value: Mapping[str, Any], name: str) -> Iterator[SchemaMismatchError]:
    if inner is False:
        yield SchemaMismatchError(f"the key {name[:200]!r} is not allowed")
    else:
        yield from validator.descend(value[name], inner, path=name)


def _evaluated_keys(validator: Any, schema: Any, value: Mapping[str, Any]) -> Iterator[str]:
    """Keys of an object that a schema evaluates, itself or by the schemas that it applies to the whole object.

    Differs from jsonschema's `find_evaluated_property_keys_by_schema` only in how patterns are matched.
    """
    if not isinstance(schema, Mapping):
        return
    yield from value.keys() & schema.get("properties", {}).keys()
    yield from (name for name in value if _matches_one(schema.get("patternProperties", {}), name))
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in schema:
            yield from (name for name, each in value.items() if _is_valid(validator, schema[keyword], each))
    for reference in ("$ref", "$dynamicRef"):
        if reference in schema:
            found = validator._resolver.lookup(schema[reference])  # as jsonschema itself, which has no public way
            inside = validator.evolve(schema=found.contents, _resolver=found.resolver)
            yield from _evaluated_keys(inside, found.contents, value)
    for inner in _applied_schemas(validator, schema, value):
        yield from _evaluated_keys(validator, inner, value)


def _applied_schemas(validator: Any, schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[Any]:
    """Schemas within a schema that apply to the whole object."""
    yield from (inner for name, inner in schema.get("dependentSchemas", {}).items() if name in value)
    for keyword in ("allOf", "oneOf", "anyOf"):
        yield from (inner for inner in schema.get(keyword, []) if _is_valid(validator, inner, value))
    if "if" in schema:
        holds = _is_valid(validator, schema["if"], value)
        yield from (schema[keyword] for keyword in (("if", "then") if holds else ("else",)) if keyword in schema)


def _is_valid(validator: Any, schema: Any, value: Any) -> bool:
    return next(validator.descend(value, schema), None) is None


def _matches_one(patterns: Iterable[str], name: str) -> bool:
    return any(contains_match(pattern, name) for pattern in patterns)


def _unique_items(validator: Validator, is_unique: bool, value: Any, schema: Any) -> Iterator[SchemaMismatchError]:
    if is_unique and validator.is_type(value, "array") and not all_differ(value):
        yield SchemaMismatchError("an item occurs twice")


_LinearValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "unevaluatedProperties": _unevaluated_properties,
        "uniqueItems": _unique_items,
    },
)
_evolve_by_dialect = _LinearValidator.evolve


def _evolve(validator: Any, **changes: Any) -> Any:
    """The validator for another schema, of the same class also where that schema names its dialect in `$schema`."""
    schema = changes.get("schema", validator.schema)
    if isinstance(schema, Mapping) and "$schema" in schema:
        changes["schema"] = {name: value for name, value in schema.items() if name != "$schema"}
    return _evolve_by_dialect(validator, **changes)


_LinearValidator.evolve = _evolve
