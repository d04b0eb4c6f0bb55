"""Validation of what users write in commands, YAML and rows: checked values, or a sentence that names the wrong key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from verl_pivot.errors import ConfigError

ModelT = TypeVar("ModelT", bound=BaseModel)


def place_of(path: Path) -> str:
    """Folder in which a relative path was looked for, to append to its name in a message; Ray workers have others."""
    return "" if path.is_absolute() else f" in {Path.cwd()}"


class Options(BaseModel):
    """Base of all options that users write: an unknown key is an error, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolArgument(NamedTuple):
    """One argument of one tool. Users write "tool.argument".

    Example:
        ToolArgument.parse("submit.code") == ToolArgument(tool="submit", argument="code")
    """

    tool: str
    argument: str

    @classmethod
    def parse(cls, text: object) -> "ToolArgument":
        """Split at the first dot.

        Raises:
            ValueError: If `text` does not name a tool and an argument.
        """
        tool, _, argument = text.partition(".") if isinstance(text, str) else ("", "", "")
        if not tool or not argument:
            raise ValueError(f"must be 'tool.argument', got {text!r}")
        return cls(tool=tool, argument=argument)

    def path_in(self, tool: str) -> str | None:
        """Path within the arguments of a tool, whose name may have dots; None if the argument belongs to another tool.

        Example:
            ToolArgument.parse("mail.message.body").path_in("mail") == "message.body"
        """
        text = str(self)
        return text.removeprefix(f"{tool}.") if text.startswith(f"{tool}.") else None

    def __str__(self) -> str:
        return f"{self.tool}.{self.argument}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, cls) else cls.parse(value),
            serialization=core_schema.to_string_ser_schema(),
        )


def validated(model: type[ModelT], values: object, section: str) -> ModelT:
    """Check the options of one section of a launch command or of a file.

    Args:
        model: The type of the section.
        values: What the user wrote.
        section: Name of the section, which messages put before the key: "pivot.rollout".

    Raises:
        ConfigError: Naming the first key that is wrong; for an unknown key, also the known ones.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(first_problem(error, section, model=model)) from error


def first_problem(error: ValidationError, section: str = "", *, model: type[BaseModel] | None = None) -> str:
    """The first problem that pydantic found, as `section.key: what is wrong, got value`.

    Args:
        error: What pydantic raised.
        section: Name that goes before the key; "" for none.
        model: The type that was checked; with it, a message about an unknown key lists the known ones.
    """
    first = error.errors()[0]
    path = [part for part in first["loc"] if part != "[key]"]
    place = ".".join(map(str, [section, *path] if section else path))
    problem = _described(first, model)
    return f"{place}: {problem}" if place else problem


def _described(problem: ErrorDetails, model: type[BaseModel] | None) -> str:
    if problem["type"] == "extra_forbidden":
        known = _keys_at(model, problem["loc"][:-1]) if model is not None else []
        return f"unknown key; known: {', '.join(known)}" if known else "unknown key"
    if problem["type"] == "value_error":  # raised by one of our validators, with a complete message
        return problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":  # pydantic gives the whole section as the value
        return problem["msg"]
    return f"{problem['msg']}, got {problem['input']!r}"


def _keys_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Keys of the section at `path` within `model`, in alphabetical order; none if it is no section of one type."""
    for part in path:
        if isinstance(part, int):  # an item of a list, whose type is already known
            continue
        field = model.model_fields.get(part)
        found = _model_in(field.annotation) if field is not None else None
        if found is None:
            return []
        model = found
    return sorted(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The first pydantic model that an annotation names, such as `Pair` in `tuple[Pair, ...] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
