"""Spaces of Gymnasium: an action space -> JSON schema, a JSON value -> action, an observation -> JSON value."""

import math
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy

from verl_pivot.errors import ConfigError
from verl_pivot.extras import extra
from verl_pivot.types import Json, JsonObject

with extra("gymnasium"):
    from gymnasium import spaces

GIVE_RENDERER = (
    "write a subclass of verl_pivot.environments.renderer.EnvironmentRenderer and name it: "
    "`renderer: package.module:Class`"
)
MAX_ACTION_NUMBERS = 64
"""Maximum count of numbers in an action that a policy is asked to write."""
MAX_OBSERVATION_NUMBERS = 4096
"""Maximum count of numbers in an observation that is shown as text."""


@singledispatch
def schema_of(space: spaces.Space[Any]) -> JsonObject:
    """JSON schema of the actions of a space.

    Raises:
        ConfigError: If no schema describes them.
    """
    raise ConfigError(f"no schema describes the action space {space!r:.200}; {GIVE_RENDERER}")


@schema_of.register
def _(space: spaces.Discrete) -> JsonObject:
    return _integers(int(space.start), int(space.start + space.n - 1))


@schema_of.register
def _(space: spaces.MultiDiscrete) -> JsonObject:
    _check_size(space, space.nvec.size)
    return _nested(space.start, space.start + space.nvec - 1, is_integer=True)


@schema_of.register
def _(space: spaces.MultiBinary) -> JsonObject:
    _check_size(space, math.prod(space.shape))
    return _nested(numpy.zeros(space.shape, int), numpy.ones(space.shape, int), is_integer=True)


@schema_of.register
def _(space: spaces.Box) -> JsonObject:
    _check_size(space, math.prod(space.shape))
    return _nested(space.low, space.high, is_integer=numpy.issubdtype(space.dtype, numpy.integer))


@schema_of.register
def _(space: spaces.Text) -> JsonObject:
    characters = "".join(sorted(space.character_set))
    return {
        "type": "string",
        "minLength": space.min_length,
        "maxLength": space.max_length,
        "description": f"Only the characters {characters}",
    }


@schema_of.register
def _(space: spaces.Dict) -> JsonObject:
    properties: JsonObject = {str(name): schema_of(each) for name, each in space.spaces.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@schema_of.register(spaces.Tuple)
def _(space: spaces.Tuple[Any]) -> JsonObject:
    return _array([schema_of(each) for each in space.spaces])


def _check_size(space: spaces.Space[Any], num_numbers: int) -> None:
    if num_numbers > MAX_ACTION_NUMBERS:
        raise ConfigError(
            f"the action space {space!r:.200} has {num_numbers} numbers, and a policy is asked for at most "
            f"{MAX_ACTION_NUMBERS}; {GIVE_RENDERER}"
        )


def _integers(low: int, high: int) -> JsonObject:
    return {"type": "integer", "minimum": low, "maximum": high}


def _nested(low: Any, high: Any, *, is_integer: bool) -> JsonObject:
    """Schema of arrays with these bounds, nested by axes; bounds without axes give the schema of one number."""
    if numpy.ndim(low) == 0:
        if is_integer:
            return _integers(int(low), int(high))
        bounds = {"minimum": plain(numpy.asarray(low)), "maximum": plain(numpy.asarray(high))}
        finite = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}  # type: ignore[arg-type]
        return {"type": "number", **finite}
    return _array([_nested(*each, is_integer=is_integer) for each in zip(low, high, strict=True)])


def _array(items: Sequence[JsonObject]) -> JsonObject:
    """Schema of arrays with one item for each of these schemas."""
    alike = all(item == items[0] for item in items)
    described: JsonObject = {"items": items[0]} if items and alike else {"prefixItems": list(items)}
    return {"type": "array", "minItems": len(items), "maxItems": len(items), **described}


def action_of(space: spaces.Space[Any], value: Any) -> Any:
    """Action that a JSON value stands for, which the schema of the space accepts.

    Raises:
        ValueError: If the action is not in the space although the schema accepts the value.
    """
    action = _action(space, value)
    if not space.contains(action):
        raise ValueError(f"action {value!r:.200} is not in the action space {space!r:.200}")
    return action


def _action(space: spaces.Space[Any], value: Any) -> Any:
    match space:
        case spaces.Dict():
            return {name: _action(each, value[str(name)]) for name, each in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_action(each, part) for each, part in zip(space.spaces, value, strict=True))
        case spaces.Text():
            return value
        case spaces.Discrete():
            return int(value)
    try:
        with numpy.errstate(over="raise"):
            return numpy.asarray(value, dtype=space.dtype)
    except ArithmeticError as error:
        raise ValueError(f"action {value!r:.200} holds a number beyond those of {space.dtype}") from error


def plain(observation: Any) -> Json:
    """An observation as a JSON value; a 32-bit float is written with as many digits as 32 bits hold.

    Raises:
        TypeError: If it holds anything but numbers, texts, arrays, lists, tuples and dictionaries.
    """
    match observation:
        case numpy.ndarray() if observation.ndim:
            return [plain(each) for each in observation]
        case numpy.ndarray() | numpy.bool_() | numpy.integer() | numpy.str_():
            return plain(observation[()]) if isinstance(observation, numpy.ndarray) else observation.item()
        case numpy.floating():
            return float(str(observation))
        case dict():
            return {str(name): plain(each) for name, each in observation.items()}
        case list() | tuple():
            return [plain(each) for each in observation]
        case None | bool() | int() | float() | str():
            return observation
    raise TypeError(
        f"an observation holds {type(observation).__name__}, which cannot be shown as text; {GIVE_RENDERER}"
    )


def num_numbers(space: spaces.Space[Any]) -> int:
    """Maximum count of numbers and texts in an observation; of one item, for a space without a fixed size."""
    match space:
        case spaces.Dict():
            return sum(map(num_numbers, space.spaces.values()))
        case spaces.Tuple():
            return sum(map(num_numbers, space.spaces))
        case spaces.Sequence():
            return num_numbers(space.feature_space)
    return math.prod(space.shape or ())
