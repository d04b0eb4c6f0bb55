"""Optional packages: an import that fails names the extra of verl-pivot that installs the package."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from verl_pivot.errors import ConfigError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Surround imports of packages that an extra of pyproject.toml installs.

    Example:
        with extra("data"):
            import duckdb

    Raises:
        ConfigError: If a package is not installed, with the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise _missing(str(error.name).partition(".")[0], name) from error


def require(package: str, name: str) -> None:
    """Check for a package that only another process will import, without importing it.

    Raises:
        ConfigError: If the package is not installed, with the command that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise _missing(package, name)


def _missing(package: str, name: str) -> ConfigError:
    return ConfigError(f"the Python package {package} is not installed: pip install 'verl-pivot[{name}]'")
