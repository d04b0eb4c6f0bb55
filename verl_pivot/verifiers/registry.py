"""The contract of a verifier, and the registry: name -> Verifier."""

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from pydantic import BaseModel, ValidationError

from verl_pivot.errors import ConfigError
from verl_pivot.loading import load_modules
from verl_pivot.types import JsonObject, Message, Turn, Verdict


class Verifier(Protocol):
    """Compare one sampled action with the expert's, from the same state.

    Return ``Verdict(score=None, ...)`` when the comparison itself fails (broken expert data, sandbox
    down). Raise only for a bug: an exception stops the run, a None is counted and left out. A verifier
    never trusts text of the policy and never changes ``turn``.
    """

    async def __call__(self, action: Message, turn: Turn) -> Verdict: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """What stands under a name: a verifier, or what makes one from options."""

    source: Callable[..., Any]
    options: type[BaseModel] | None


_entries: dict[str, _Entry] = {}
_made: dict[tuple[str, str], Verifier] = {}
_builtin = {
    name: f"verl_pivot.verifiers.{module}"
    for name, module in (
        ("code", "code"),
        ("edit", "edit"),
        ("first_decided", "composition"),
        ("judge", "judge"),
        ("math", "math"),
        ("qa", "qa"),
        ("search_query", "search_query"),
        ("shell", "shell"),
        ("sql", "sql"),
        ("terminus", "terminus"),
        ("tool_call", "tool_call"),
        ("weighted", "composition"),
    )
}
Source = TypeVar("Source", bound=Callable[..., Any])


def register(name: str, *, options: type[BaseModel] | None = None) -> Callable[[Source], Source]:
    """Make a verifier selectable by name: ``verl-pivot import --verifier <name>``.

    Args:
        name: Must be free.
        options: A model of options; what is decorated then makes a verifier from an instance of it. Without, what is
            decorated is the verifier.

    Raises:
        ConfigError: If another verifier has the name already.
    """

    def decorator(source: Source) -> Source:
        known = _entries.get(name)
        if known is not None and _qualified_name(known.source) != _qualified_name(source):
            raise ConfigError(
                f"verifier {name!r} is registered twice, by {_qualified_name(known.source)} and "
                f"{_qualified_name(source)}; rename one of them"
            )
        _entries[name] = _Entry(source=source, options=options)
        return source

    return decorator


def get_verifier(name: str, options: JsonObject | None = None) -> Verifier:
    """The verifier registered under ``name``, the same one for the same options.

    Raises:
        ConfigError: If there is none, or it does not take these options.
    """
    key = (name, json.dumps(options or {}, sort_keys=True))
    if key not in _made:
        _made[key] = _make(name, options or {})
    return _made[key]


def _make(name: str, options: JsonObject) -> Verifier:
    if name not in _entries and name in _builtin:
        importlib.import_module(_builtin[name])
    if name not in _entries:
        raise ConfigError(
            f"unknown verifier {name!r}; known: {sorted({*_entries, *_builtin})}. One of your own is registered by "
            "the module that defines it: name that with --verifier-module, or pivot.verifier_modules in training"
        )
    entry = _entries[name]
    if entry.options is None:
        if options:
            raise ConfigError(f"verifier {name!r} takes no options, got {sorted(options)}")
        return cast(Verifier, entry.source)
    try:
        return cast(Verifier, entry.source(entry.options.model_validate(options)))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the options"
        known = ", ".join(sorted(entry.options.model_fields))
        raise ConfigError(f"options of verifier {name!r}: {place}: {first['msg']}; it knows {known}") from error


def load_verifier_modules(modules: Iterable[str]) -> None:
    """Import modules that register verifiers: dotted names, or paths of Python files.

    Raises:
        ConfigError: If one cannot be found.
    """
    load_modules(modules, "verifier")


def _qualified_name(source: object) -> str:
    return f"{getattr(source, '__module__', '')}.{getattr(source, '__qualname__', type(source).__qualname__)}"
