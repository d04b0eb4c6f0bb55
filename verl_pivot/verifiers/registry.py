"""Contract of a verifier, and the registry: name and options -> Verifier."""

import json
import threading
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from cachetools import LRUCache
from pydantic import BaseModel

from verl_pivot.errors import ConfigError
from verl_pivot.registry import Registry
from verl_pivot.types import JsonObject, Message, Turn, Verdict


class Verifier(Protocol):
    """Compares one sampled action with the expert's, from the same state.

    Return ``Verdict.undecided(...)`` when the comparison itself fails (broken expert data, sandbox down). Raise only
    for a bug: an exception stops a profile and the first step of training. Later it is counted, and the action is left
    out like an undecided one. A verifier never trusts text of the policy and never changes ``turn``.

    Example:
        @register("same_text")
        async def same_text(action: Message, turn: Turn) -> Verdict:
            if action.content == turn.expert.content:
                return Verdict.accept()
            return Verdict.refuse("other_text", action.content[:200])
    """

    async def __call__(self, action: Message, turn: Turn) -> Verdict: ...


_MODULES = {
    "code": "code",
    "constraints": "constraints",
    "edit": "edit",
    "first_decided": "composition",
    "judge": "judge",
    "math": "math",
    "qa": "qa",
    "render": "render",
    "search_query": "search_query",
    "shell": "shell",
    "sql": "sql",
    "terminus": "terminus",
    "tool_call": "tool_call",
    "weighted": "composition",
}
_verifiers: Registry[Verifier] = Registry(
    "verifier",
    shipped={
        **{name: f"verl_pivot.verifiers.{module}" for name, module in _MODULES.items()},
        "process_score": "verl_pivot.rewards.process_score",
        "state": "verl_pivot.tools.environment_state",
    },
    remedy="For a verifier of your own, name the module that registers it with --verifier-module, or in training with "
    "pivot.verifier_modules",
)
_MAX_CHARS_KEPT = 64 * 1024**2
"""Most characters that the options of all cached verifiers may have: each row may have its own files or databases."""
_made: LRUCache[tuple[str, str], tuple[int, Verifier]] = LRUCache(_MAX_CHARS_KEPT, getsizeof=lambda kept: kept[0])
_CHARS_OF_VERIFIER = 2048
"""Characters that are counted for each cached verifier, in addition to those of its options."""
_lock = threading.Lock()
SourceT = TypeVar("SourceT", bound=Callable[..., Any])


def register(name: str, *, options: type[BaseModel] | None = None) -> Callable[[SourceT], SourceT]:
    """Decorator that makes a verifier selectable by name: ``verl-pivot import --verifier <name>``.

    Args:
        name: A name that no other verifier has.
        options: Type of the verifier's options; the decorated class or function makes the verifier from an instance of
            this type. Without options, the decorated function is the verifier.

    Raises:
        ConfigError: If another verifier has the name already.
    """
    return _verifiers.register(name, options=options)


def get_verifier(name: str, options: JsonObject | None = None) -> Verifier:
    """The verifier registered under ``name``; equal options give the same object, while it is cached.

    Raises:
        ConfigError: If no verifier has the name, or the verifier does not take these options.
    """
    key = (name, _as_text(name, options or {}))
    with _lock:
        kept = _made.get(key)
    if kept is not None:
        return kept[1]
    made = _verifiers.make(name, options or {})
    size = len(key[1]) + _CHARS_OF_VERIFIER
    if size > _MAX_CHARS_KEPT:
        return made
    with _lock:
        return _made.setdefault(key, (size, made))[1]


def check_verifier(name: str, options: JsonObject) -> None:
    """Refuse a name or options that `get_verifier` would refuse; caches no verifier, since rows may all differ.

    Raises:
        ConfigError: If no verifier has the name, or the verifier does not take these options.
    """
    _check(name, _as_text(name, options))


def _as_text(name: str, options: JsonObject) -> str:
    try:
        return json.dumps(options, sort_keys=True)
    except RecursionError as error:
        raise ConfigError(f"the options of verifier {name!r} are nested too deeply") from error


@lru_cache(maxsize=256)
def _check(name: str, options: str) -> None:
    _verifiers.make(name, json.loads(options))


def parsed_options(name: str, options: JsonObject) -> BaseModel | None:
    """The options as the verifier reads them; None for a verifier that takes none.

    Raises:
        ConfigError: If no verifier has the name, or the verifier does not take these options.
    """
    check_verifier(name, options)
    model = verifier_options(name)
    return None if model is None else model.model_validate(options)


def verifier_options(name: str) -> type[BaseModel] | None:
    """Type of a verifier's options; None for a verifier that takes none.

    Raises:
        ConfigError: If no verifier has the name.
    """
    return _verifiers.find(name).options


def known_verifiers() -> tuple[str, ...]:
    """Every name that `--verifier` takes, in alphabetical order."""
    return _verifiers.names


def load_verifier_modules(modules: Iterable[str]) -> None:
    """Import modules that register verifiers: dotted names, or paths of Python files.

    Raises:
        ConfigError: If a module cannot be found.
    """
    _verifiers.load(modules)
