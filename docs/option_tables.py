"""Options that users write, from their pydantic models and the texts under the fields -> rows of tables."""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from verl_pivot.verifiers.tool_call_functional import EqualityRules
from verl_pivot.verifiers.tool_call_options import ToolCallOptions

WORDS: dict[object, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "True or False",
    NoneType: "null",
    Path: "path",
    Any: "any value",
}
"""{type of Python: its name in the docs}."""
LISTS = (tuple, list, frozenset, set)
SAME_FIELDS: dict[type, tuple[type, ...]] = {ToolCallOptions: (EqualityRules,)}
"""{model: classes that have some of its fields, and the texts that explain them}."""


class Option(NamedTuple):
    """One key that users may write."""

    key: str
    """The key with its sections: "pivot.rollout.max_turns"."""
    type: str
    default: str
    """As it is written; "" for a key that must be given."""
    meaning: str
    """Text under the field; "" if there is none."""


def options_of(model: type[BaseModel], section: str = "") -> Iterator[Option]:
    """The options of a model; those of a model within it have the name of its field as their section."""
    meanings = meanings_of(model)
    for name, field in model.model_fields.items():
        key = f"{section}.{name}" if section else name
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from options_of(inner, key)
            continue
        kind = in_words(inner, field.metadata)
        default = field.get_default(call_default_factory=True)
        written = "" if default is PydanticUndefined else as_written(default)
        yield Option(key, kind, written, meanings.get(name, ""))


def meanings_of(model: type) -> dict[str, str]:
    """{field: the text under it}, of the class and its base classes."""
    found: dict[str, str] = {}
    for owner in (*reversed(model.__mro__), *SAME_FIELDS.get(model, ())):
        if not owner.__module__.startswith("verl_pivot."):
            continue
        source = ast.parse(inspect.getsource(sys.modules[owner.__module__]))
        body = next(node.body for node in source.body if isinstance(node, ast.ClassDef) and node.name == owner.__name__)
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found


def in_words(annotation: Any, limits: Iterable[object] = ()) -> str:
    """A type in words, such as "whole number >= 1, or null"."""
    if hasattr(annotation, "__metadata__"):  # Annotated
        return in_words(annotation.__origin__, (*annotation.__metadata__, *limits))
    origin, parts = get_origin(annotation), get_args(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"object of {in_words(parts[1])}"
    if origin in LISTS:
        return f"list of {in_words(next(part for part in parts if part is not Ellipsis))}"
    if parts and all(isinstance(part, str | int) for part in parts):  # Literal
        return ", ".join(f"`{part}`" for part in parts)
    if parts:
        return ", or ".join(in_words(part, () if part is NoneType else limits) for part in parts)
    if isinstance(annotation, type) and hasattr(annotation, "__members__"):
        return ", ".join(f"`{member.value}`" for member in annotation)
    return WORDS.get(annotation, _own(annotation)) + bounds(limits)


def _own(annotation: Any) -> str:
    """The name of a class of this package, split into words."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", getattr(annotation, "__name__", str(annotation)))
    return name.removesuffix(" Options").lower()


def bounds(limits: Iterable[object]) -> str:
    """Limits of a number, such as " >= 1, < 2"; "" for other types."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    flat = [inner for each in limits for inner in (each, *getattr(each, "metadata", ()))]
    told = [f"{sign} {getattr(each, name)}" for each in flat for name, sign in signs.items() if hasattr(each, name)]
    return f" {', '.join(dict.fromkeys(told))}" if told else ""


def as_written(value: object) -> str:
    """A default value as YAML or JSON writes it."""
    match value:
        case None:
            return "null"
        case "":
            return '""'
        case bool() | int() | float():
            return str(value)
        case tuple() | list() | set() | frozenset():
            return f"[{', '.join(as_written(each) for each in value)}]"
        case dict():
            return "{}" if not value else str(value)
    return str(getattr(value, "value", value))


def table(options: Iterable[Option]) -> Iterator[str]:
    """Rows of Markdown, under their heading.

    Raises:
        ValueError: If an option has no meaning.
    """
    yield from ("| option | type | default | meaning |", "|---|---|---|---|")
    for each in options:
        if not each.meaning:
            raise ValueError(f"{each.key} has no meaning: write a text under its field")
        yield row(code(each.key), each.type, code(each.default), prose(each.meaning))


def code(text: str) -> str:
    """A value as code in Markdown, between more backticks than it contains; "" for an empty value."""
    marks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{marks}{text}{marks}" if text and marks == "`" else f"{marks} {text} {marks}" if text else ""


def prose(text: str) -> str:
    """A docstring for readers who write YAML: null for None, and no `<` that Markdown takes for HTML."""
    text = re.sub(r"\bNone\b", "null", text).replace("```", r"\`\`\`")
    parts = re.split(r"((?<!\\)`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def row(*cells: str) -> str:
    """One row of a table; bars within cells are escaped."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
