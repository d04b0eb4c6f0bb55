"""Modules of the user's that register something by being imported."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from verl_pivot.errors import ConfigError


def load_modules(modules: Iterable[str], kind: str) -> None:
    """Import modules that register things of a kind: dotted names, or paths of Python files.

    Raises:
        ConfigError: If one cannot be found.
    """
    for module in modules:
        if module.endswith(".py"):
            _import_file(Path(module), kind)
        else:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"{kind} module {module!r} cannot be imported ({error}); "
                    "give a dotted name on PYTHONPATH or the path of a .py file"
                ) from error


def _import_file(path: Path, kind: str) -> None:
    name = f"verl_pivot_{kind}_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return
    if not path.is_file():
        raise ConfigError(f"{kind} module {str(path)!r} is no file")
    spec = importlib.util.spec_from_file_location(name, path)
    loader = spec.loader if spec else None
    assert spec is not None, path
    assert loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
