"""Name and options of a filter -> the filter; users register filters of their own in the same way."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel

from verl_pivot.quality.contract import DatasetFilter, FilterOptions, TrajectoryFilter
from verl_pivot.registry import Registry
from verl_pivot.types import JsonObject

Filter: TypeAlias = TrajectoryFilter | DatasetFilter[Any]
Source = TypeVar("Source", bound=Callable[[Any], Filter])

_NAMES = (
    "coherence",
    "correctness",
    "difficulty",
    "diversity",
    "efficiency",
    "leakage",
    "near_duplicates",
    "solved",
)
_filters: Registry[Filter] = Registry(
    "filter",
    shipped={name: f"verl_pivot.quality.{name}" for name in _NAMES},
    remedy="--filter-module loads your own",
)


def register_filter(name: str, *, options: type[FilterOptions]) -> Callable[[Source], Source]:
    """Make a filter known to the rules of `verl-pivot filter`.

    Args:
        name: A name that no other filter has.
        options: Class of the filter's options; the decorated class or function is called with an instance of it.

    Raises:
        ConfigError: If another filter has the name already.
    """
    return _filters.register(name, options=options)


def make_filter(name: str, options: JsonObject) -> Filter:
    """The filter of that name with these options.

    Raises:
        ConfigError: If no filter has that name, or it does not take the options.
    """
    return _filters.make(name, options)


def known_filters() -> tuple[str, ...]:
    """Every name that rules can use, in alphabetical order."""
    return _filters.names


def filter_options(name: str) -> type[BaseModel] | None:
    """Type of a filter's options.

    Raises:
        ConfigError: If no filter has that name.
    """
    return _filters.find(name).options


def load_filter_modules(modules: Iterable[str]) -> None:
    """Import modules that register filters: dotted names, or paths of Python files.

    Raises:
        ConfigError: If a module cannot be found.
    """
    _filters.load(modules)
