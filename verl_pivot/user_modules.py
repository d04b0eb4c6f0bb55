"""Imports of the user's own modules and objects, by dotted name or by the path of a Python file."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from verl_pivot.errors import ConfigError, PivotError
from verl_pivot.validation import place_of


def load_modules(modules: Iterable[str], kind: str) -> None:
    """Import modules that register verifiers, filters or the like.

    Args:
        modules: Dotted names, or paths of Python files.
        kind: Word for what they register, in messages: "verifier".

    Raises:
        ConfigError: If a module cannot be found, or fails while it is imported.
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
            except (Exception, SystemExit) as error:  # the user's code may fail in any way
                raise _broken_module(module, kind, error) from error


def module_path(module: str) -> Path:
    """File of a module that is given as `load_modules` takes it; the bare name where it cannot be found.

    Args:
        module: Dotted name, or path of a Python file.
    """
    if module.endswith(".py"):
        return Path(module)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # no such package, or a module without a spec
        spec = None
    return Path(module if spec is None or spec.origin is None else spec.origin)


def load_object(name: str, kind: str) -> Any:
    """Import the object that `package.module:name` or `folder/file.py:name` names.

    Args:
        name: Module and name, with a colon between them.
        kind: Word for the object in messages: "function".

    Raises:
        ConfigError: If the module or the name cannot be found.
    """
    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise ConfigError(f"{kind} {name!r} must be 'package.module:name' or 'folder/file.py:name'")
    load_modules([module], kind)
    loaded = sys.modules[_name_of_file(Path(module)) if module.endswith(".py") else module]
    if not hasattr(loaded, attribute):
        raise ConfigError(f"{kind} {name!r}: {module} has no {attribute!r}")
    return getattr(loaded, attribute)


def _name_of_file(path: Path) -> str:
    """Name of a file's module, the same for whatever the file is used as, so that the file is executed once."""
    return f"verl_pivot_user_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:16]}"


def _import_file(path: Path, kind: str) -> None:
    name = _name_of_file(path)
    if name in sys.modules:
        return
    if not path.is_file():
        raise ConfigError(
            f"{kind} module {str(path)!r} is not a file{place_of(path)}; give the path of a .py file; on a cluster, an "
            "absolute path that exists on every node"
        )
    spec = importlib.util.spec_from_file_location(name, path)
    loader = spec.loader if spec else None
    assert spec is not None, path
    assert loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's code may fail in any way
        del sys.modules[name]
        raise _broken_module(str(path), kind, error) from error


def _broken_module(module: str, kind: str, error: BaseException) -> PivotError:
    """The error for a module that fails while it is imported, with the line of the module."""
    if isinstance(error, PivotError):  # such as a name that is registered already, or an extra that is missing
        return error
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f", {frames[-1].filename}, line {frames[-1].lineno}" if frames[1:] else ""
    return ConfigError(f"{kind} module {module!r} fails when it is imported: {type(error).__name__}: {error}{place}")
