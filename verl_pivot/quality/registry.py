"""Names of filters -> what makes them from their options; one's own are registered alike."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError

from verl_pivot.errors import ConfigError
from verl_pivot.loading import load_modules
from verl_pivot.quality.contract import DatasetFilter, FilterOptions, TrajectoryFilter
from verl_pivot.types import JsonObject

Filter: TypeAlias = TrajectoryFilter | DatasetFilter[Any]
Source = TypeVar("Source", bound=Callable[[Any], Filter])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    source: Callable[[Any], Filter]
    options: type[FilterOptions]


_entries: dict[str, _Entry] = {}
_BUILTIN = (
    "coherence",
    "correctness",
    "difficulty",
    "diversity",
    "efficiency",
    "leakage",
    "near_duplicates",
    "solved",
)
"""Each in the module of its name."""


def register_filter(name: str, *, options: type[FilterOptions]) -> Callable[[Source], Source]:
    """Make a filter known to the rules of `verl-pivot filter`.

    Args:
        name: Must be free.
        options: A model of options; what is decorated makes a filter from an instance of it.

    Raises:
        ConfigError: If another filter has the name already.
    """

    def decorator(source: Source) -> Source:
        known = _entries.get(name)
        if known is not None and _qualified_name(known.source) != _qualified_name(source):
            raise ConfigError(
                f"filter {name!r} is registered twice, by {_qualified_name(known.source)} and "
                f"{_qualified_name(source)}; rename one of them"
            )
        _entries[name] = _Entry(source=source, options=options)
        return source

    return decorator


def make_filter(name: str, options: JsonObject) -> Filter:
    """A filter of that name with these options.

    Raises:
        ConfigError: If there is none, or it does not take the options.
    """
    if name not in _entries and name in _BUILTIN:
        importlib.import_module(f"verl_pivot.quality.{name}")
    if name not in _entries:
        raise ConfigError(
            f"unknown filter {name!r}; known: {', '.join(known_filters())} (--filter-module loads one's own)"
        )
    entry = _entries[name]
    try:
        return entry.source(entry.options.model_validate(options))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (name, *first["loc"])))
        known = ", ".join(sorted(entry.options.model_fields)) or "no options"
        raise ConfigError(f"{place}: {first['msg']}, got {first['input']!r}; it knows {known}") from error


def known_filters() -> tuple[str, ...]:
    """Every name that rules can use, in alphabetical order."""
    return tuple(sorted({*_entries, *_BUILTIN}))


def load_filter_modules(modules: Iterable[str]) -> None:
    """Import modules that register filters: dotted names, or paths of Python files.

    Raises:
        ConfigError: If one cannot be found.
    """
    load_modules(modules, "filter")


def _qualified_name(source: object) -> str:
    return f"{getattr(source, '__module__', '')}.{getattr(source, '__qualname__', type(source).__qualname__)}"
