"""Python interpreter -> the folders of the host that a sandbox must show so that this Python runs in it."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.errors import ConfigError

VENV = "/venv"
"""Folder inside the sandbox that shows the virtual environment."""
_PRIVATE = (Path("/tmp"), Path("/dev"), Path("/proc"), Path("/sandbox"))
"""Folders over which a sandbox mounts its own, so that nothing of the host's is seen there."""
_QUESTION = "import json, site, sys; print(json.dumps([sys.base_prefix, sys.prefix, site.getsitepackages()]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonView:
    """A Python interpreter as a sandbox shows it; `PythonView.of()` is the running one.

    Example:
        PythonView(executable="/venv/bin/python", bases=(Path("/opt/python"),), environment=Path("/home/me/env"),
                   site_packages=("/venv/lib/python3.11/site-packages",))
    """

    executable: str
    """Path of the interpreter inside the sandbox."""
    bases: tuple[Path, ...]
    """Folders of the installation, shown at their own paths, as the binary needs; two if one links to the other."""
    environment: Path | None
    """Folder of the virtual environment on the host, shown at /venv; None if there is none."""
    site_packages: tuple[str, ...]
    """Paths of its site-packages folders inside the sandbox."""

    @classmethod
    def of(cls, executable: str | None = None) -> "PythonView":
        """View of an interpreter; None takes the running one.

        Raises:
            ConfigError: If the file is no Python, or cannot be shown in a sandbox.
        """
        return _view_of(executable or sys.executable)


def is_below(path: Path, folder: Path) -> bool:
    """Whether `path` is `folder` or lies in it, by their names alone."""
    return path == folder or folder in path.parents


@functools.cache
def _view_of(executable: str) -> PythonView:
    base, prefix, site_packages = _ask(executable)
    bases = (base,) if base.resolve() == base else (base, base.resolve())
    for folder in bases:
        if any(is_below(folder, private) for private in _PRIVATE):
            raise ConfigError(
                f"Python is installed in {folder}, which the sandbox covers with its own folder: "
                "install it elsewhere, for example in /opt or /usr/local"
            )
    if prefix == base:
        return PythonView(executable=executable, bases=bases, environment=None, site_packages=site_packages)
    _check_links(Path(executable), prefix, bases)
    inside = tuple(_inside(Path(path), prefix) for path in site_packages)
    name = Path(executable).name
    return PythonView(executable=f"{VENV}/bin/{name}", bases=bases, environment=prefix, site_packages=inside)


def _ask(executable: str) -> tuple[Path, Path, tuple[str, ...]]:
    """Base prefix, prefix and site-packages of an interpreter."""
    try:
        run = subprocess.run(
            [executable, "-I", "-c", _QUESTION], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{executable} does not run as a Python interpreter: {error}") from error
    base, prefix, site_packages = json.loads(run.stdout)
    return Path(base), Path(prefix), tuple(site_packages)


def _inside(path: Path, prefix: Path) -> str:
    """Path inside the sandbox for a path of the host."""
    return str(Path(VENV, path.relative_to(prefix)) if is_below(path, prefix) else path)


def _check_links(executable: Path, prefix: Path, bases: tuple[Path, ...]) -> None:
    """Check that each link from an environment's `python` to the real one exists inside the sandbox too."""
    for link in _chain(executable):
        if not any(is_below(link, folder) for folder in (prefix, *bases, Path("/usr"))):
            raise ConfigError(
                f"{executable} links to {link}, which is neither in the environment nor in {bases[0]}: "
                f"create the environment again with `{bases[0]}/bin/python3 -m venv`"
            )


def _chain(path: Path) -> Iterator[Path]:
    """Yield the targets of a chain of symbolic links."""
    for _ in range(40):  # the kernel follows no more links than that
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
        yield path
