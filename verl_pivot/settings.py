"""Sections of settings, checked against their models: what is wrong is told by its key."""

from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from verl_pivot.errors import ConfigError

SettingsT = TypeVar("SettingsT", bound=BaseModel)


def validated(model: type[SettingsT], values: object, section: str) -> SettingsT:
    """The settings of one section of a launch command or of a file.

    Raises:
        ConfigError: Naming the key, and of an unknown one those that are known.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (section, *first["loc"])))
        known = f"; known: {_keys_at(model, first['loc'][:-1])}" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{place}: {first['msg']}{known}") from error


def _keys_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Of the section at `path` within `model`."""
    for name in path:
        annotation = model.model_fields[str(name)].annotation
        assert isinstance(annotation, type), name
        assert issubclass(annotation, BaseModel), name
        model = annotation
    return sorted(model.model_fields)
