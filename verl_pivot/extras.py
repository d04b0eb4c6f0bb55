"""Optional packages: an import that fails names the extra of verl-pivot that installs the package."""

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

from verl_pivot.errors import ConfigError

OF_VERL = frozenset(
    {"datasets", "jinja2", "psutil", "ray", "tensordict", "torch", "torchdata", "torchvision", "transfer_queue", "verl"}
)
"""Modules that the extra `verl` installs; their imports are not wrapped in `with extra(...)`."""


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


def install_command(name: str) -> str:
    """The command that installs an extra from where this package came: a checkout, a file, a git remote, or an index.

    Example:
        install_command("data")  # pip install '/home/me/verl-pivot[data]'
    """
    try:
        origin = distribution("verl-pivot").read_text("direct_url.json")
    except PackageNotFoundError:  # run from a folder on PYTHONPATH
        origin = None
    return f"pip install {install_argument(name, origin)}"


def install_argument(name: str, direct_url: str | None) -> str:
    """Argument of `pip install`; `direct_url` is the record that pip keeps of a package's origin (PEP 610)."""
    if direct_url is None:
        return f"'verl-pivot[{name}]'"
    origin = json.loads(direct_url)
    url = origin["url"]
    if url.startswith("file://"):
        editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
        return f"{editable}'{unquote(urlsplit(url).path)}[{name}]'"
    if "vcs_info" in origin:
        source = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
        return f"'verl-pivot[{name}] @ {source}'"
    return f"'verl-pivot[{name}] @ {url}'"


def missing_of_verl(error: ModuleNotFoundError) -> ConfigError | None:
    """Error for an import that failed because verl is not installed; None for any other import."""
    package = str(error.name).partition(".")[0]
    if package not in OF_VERL:
        return None
    return ConfigError(f"this needs verl, and the Python package {package} is not installed: {install_command('verl')}")


def _missing(package: str, name: str) -> ConfigError:
    return ConfigError(f"the Python package {package} is not installed: {install_command(name)}")
