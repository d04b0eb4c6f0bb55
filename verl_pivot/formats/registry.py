"""Registry of formats: name of a format -> the functions that recognize and read its rows; users add their own."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from verl_pivot.data.json_values import BadRowError
from verl_pivot.formats.conversation import Conversation
from verl_pivot.registry import Registry
from verl_pivot.types import JsonObject

Detector: TypeAlias = Callable[[JsonObject], bool]
"""Function that says whether a row looks like a format; it never raises."""

Reader: TypeAlias = Callable[[JsonObject], Conversation]
"""Function that reads one row; it raises BadRowError if the row breaks its format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format with its registered name and its two functions."""

    name: str
    detect: Detector
    read: Reader


_MODULES = {
    "trl": "trl",
    "openai": "openai",
    "sharegpt": "sharegpt",
    "nemo-gym": "nemo_gym",
    "openhands": "openhands",
    "swe-agent": "swe_agent",
    "verifiers": "verifiers_rollouts",
    "harbor": "harbor",
    "hermes": "hermes",
    "toucan": "toucan",
    "pivots": "pivots",
    "played": "played",
}
"""Formats from the most general to the most specific. If a row looks like several, the last of them reads it."""

_formats: Registry[Format] = Registry(
    "format",
    shipped={name: f"verl_pivot.formats.{module}" for name, module in _MODULES.items()},
    remedy="--format-module loads your own",
)


def register_format(name: str, *, detect: Detector) -> Callable[[Reader], Reader]:
    """Decorator that makes a reader known as `--format name`; formats registered later are tried first.

    Example:
        @register_format("my-log", detect=lambda row: "my_steps" in row)
        def read_my_log(row: JsonObject) -> Conversation: ...

    Raises:
        ConfigError: If another reader has the name already.
    """

    def decorator(read: Reader) -> Reader:
        _formats.add(name, Format(name=name, detect=detect, read=read), source=read)
        return read

    return decorator


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        ConfigError: If there is none.
    """
    return _formats.make(name, {})


def detected_format(row: JsonObject) -> Format:
    """The format that a row looks like: the user's own formats are tried first, then the most specific ones.

    Raises:
        BadRowError: If no format recognizes the row.
    """
    found = next((candidate for candidate in reversed(_formats.all()) if candidate.detect(row)), None)
    if found is None:
        raise BadRowError(
            "unknown_format",
            f"a row with {', '.join(list(row)[:8]) or 'no keys'} is of no known format; name its format with --format",
        )
    return found


def known_formats() -> tuple[str, ...]:
    """Every name that `--format` takes, in alphabetical order."""
    return _formats.names


def load_format_modules(modules: Iterable[str]) -> None:
    """Import modules that register formats: dotted names, or paths of Python files.

    Raises:
        ConfigError: If a module cannot be found.
    """
    _formats.load(modules)
