"""The contract of a verifier, and the registry: name -> Verifier."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

from verl_pivot.errors import ConfigError
from verl_pivot.types import Message, Turn, Verdict


class Verifier(Protocol):
    """Compare one sampled action with the expert's, from the same state.

    Return ``Verdict(score=None, ...)`` when the comparison itself fails (broken expert data, sandbox
    down). Raise only for a bug: an exception stops the run, a None is counted and left out. A verifier
    never trusts text of the policy and never changes ``turn``.
    """

    async def __call__(self, action: Message, turn: Turn) -> Verdict: ...


VerifierT = TypeVar("VerifierT", bound=Verifier)

_verifiers: dict[str, Verifier] = {}
_builtin = {"tool_call": "verl_pivot.verifiers.tool_call"}


def register(name: str) -> Callable[[VerifierT], VerifierT]:
    """Make a verifier selectable by name: ``verl-pivot import --verifier <name>``.

    Raises:
        ConfigError: If another verifier has the name already.
    """

    def decorator(verifier: VerifierT) -> VerifierT:
        known = _verifiers.get(name)
        if known is not None and _qualified_name(known) != _qualified_name(verifier):
            raise ConfigError(
                f"verifier {name!r} is registered twice, by {_qualified_name(known)} and "
                f"{_qualified_name(verifier)}; rename one of them"
            )
        _verifiers[name] = verifier
        return verifier

    return decorator


def get_verifier(name: str) -> Verifier:
    """The verifier registered under ``name``.

    Raises:
        ConfigError: If there is none.
    """
    if name not in _verifiers and name in _builtin:
        importlib.import_module(_builtin[name])
    if name not in _verifiers:
        raise ConfigError(
            f"unknown verifier {name!r}; known: {sorted({*_verifiers, *_builtin})}. One of your own is registered by "
            "the module that defines it: name that with --verifier-module, or pivot.verifier_modules in training"
        )
    return _verifiers[name]


def load_verifier_modules(modules: Iterable[str]) -> None:
    """Import modules that register verifiers: dotted names, or paths of Python files.

    Raises:
        ConfigError: If one cannot be found.
    """
    for module in modules:
        if module.endswith(".py"):
            _import_file(Path(module))
        else:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"verifier module {module!r} cannot be imported ({error}); "
                    "give a dotted name on PYTHONPATH or the path of a .py file"
                ) from error


def _import_file(path: Path) -> None:
    name = f"verl_pivot_verifiers_{path.stem}_{abs(hash(str(path.resolve())))}"
    if name in sys.modules:
        return
    if not path.is_file():
        raise ConfigError(f"verifier module {str(path)!r} is no file")
    spec = importlib.util.spec_from_file_location(name, path)
    loader = spec.loader if spec else None
    assert spec is not None, path
    assert loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)


def _qualified_name(verifier: Verifier) -> str:
    return f"{getattr(verifier, '__module__', '')}.{getattr(verifier, '__qualname__', type(verifier).__qualname__)}"
