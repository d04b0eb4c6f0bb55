"""Names of foreign formats -> the functions that know and read their rows; one's own are registered alike."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeAlias

from verl_pivot.data.storage import BadRowError
from verl_pivot.errors import ConfigError
from verl_pivot.types import Json, JsonObject, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a reader finds in one row; the rest of the import is the same for every format.

    Example:
        Conversation(messages=(question, call, result, answer), id="run-17", columns=frozenset({"id", "messages"}))
    """

    messages: tuple[Message, ...]
    """Text and calls of one assistant turn may come as several messages in a row: they are joined later."""
    tools: Json = None
    """Schemas as the row has them, a list or its JSON string; None takes those of `--tools`."""
    id: str | None = None
    """Of the trajectory; None: from the task and trial, or from a digest of the content."""
    task: str | None = None
    """What the split follows: trajectories of one task are alike."""
    trial: str | None = None
    passed: bool | None = None
    """Whether the outcome was right; None where the row does not say."""
    expert_turns: Literal["all", "last"] = "all"
    metadata: JsonObject = field(default_factory=dict)
    """What a verifier needs beside the messages."""
    notes: JsonObject = field(default_factory=dict)
    """What the provenance keeps of the row, such as its own names and its reward."""
    scores: tuple[float, ...] = ()
    """Of a reference policy's samples at the last turn, where the source was published with them."""
    columns: frozenset[str] = frozenset()
    """Columns that were read; the report names the others."""


Reader: TypeAlias = Callable[[JsonObject], Conversation]
"""Reads one row.

Raises:
    BadRowError: If the row breaks its format.
"""
Detector: TypeAlias = Callable[[JsonObject], bool]
"""Whether a row looks like this format; never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    name: str
    detect: Detector
    read: Reader


_formats: dict[str, Format] = {}


def register_format(name: str, *, detect: Detector) -> Callable[[Reader], Reader]:
    """Decorator that makes a reader known as `--format name`; formats registered later are asked first.

    Example:
        @register_format("my-log", detect=lambda row: "my_steps" in row)
        def read_my_log(row: JsonObject) -> Conversation: ...

    Raises:
        ConfigError: If the name is taken by another reader.
    """

    def add(read: Reader) -> Reader:
        if not read.__module__.startswith(f"{__package__}."):
            load_formats()  # first, so that one's own are asked before them
        known = _formats.get(name)
        if known is not None and (known.read.__module__, known.read.__qualname__) != (
            read.__module__,
            read.__qualname__,
        ):
            raise ConfigError(f"format {name!r} is registered twice, by {known.read.__module__} and {read.__module__}")
        _formats[name] = Format(name=name, detect=detect, read=read)
        return read

    return add


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        ConfigError: If there is none.
    """
    load_formats()
    if name not in _formats:
        raise ConfigError(
            f"no format is named {name!r}; known: {', '.join(sorted(_formats))} (--format-module loads one's own)"
        )
    return _formats[name]


def detected_format(row: JsonObject) -> Format:
    """The format that a row looks like.

    Raises:
        BadRowError: If it looks like none.
    """
    load_formats()
    found = next((candidate for candidate in reversed(_formats.values()) if candidate.detect(row)), None)
    if found is None:
        raise BadRowError(
            "unknown_format",
            f"a row with {', '.join(list(row)[:8]) or 'no keys'} is of no known format; name one with --format",
        )
    return found


def known_formats() -> tuple[str, ...]:
    """Every name that `--format` takes, in alphabetical order."""
    load_formats()
    return tuple(sorted(_formats))


@cache
def load_formats() -> None:
    """Register what ships with the package; the most general first, so that it is asked last."""
    from verl_pivot.formats import (  # noqa: F401
        hermes,
        nemo_gym,
        openai,
        openhands,
        pivots,
        sharegpt,
        swe_agent,
        toucan,
    )

    # Those that were imported before, one by the other, are in another order.
    for name in ("openai", "sharegpt", "nemo-gym", "openhands", "swe-agent", "hermes", "toucan", "pivots"):
        _formats[name] = _formats.pop(name)
