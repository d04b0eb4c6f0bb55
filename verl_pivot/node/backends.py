"""Settings of `verl-pivot sandbox serve` -> the Backend that they name, imported only then."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from verl_pivot.errors import ConfigError
from verl_pivot.node.backend import Backend

BACKENDS: Mapping[str, str] = {
    "zygote": "verl_pivot.node.zygote:ZygoteBackend",
    "bwrap_exec": "verl_pivot.node.bwrap_exec:BwrapExecBackend",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """What a backend is started with; None leaves the choice to it."""

    backend: str = "zygote"
    """A name in BACKENDS, or `module:Class` of one's own that takes these settings."""
    num_lanes: int | None = None
    """One per core by default."""
    num_slots: int | None = None
    """Executions at once over all lanes; by default as many as the memory allows."""
    min_tier: str = "T3"
    """The start fails where the machine offers less isolation."""
    preload: tuple[str, ...] = ("numpy", "sympy")
    """Packages that interpreters have imported before a program comes; those that are not installed are left out."""
    memory_bytes: int | None = None
    """For all programs together; half of what the machine or container has by default."""
    languages_file: Path | None = None
    """YAML of languages beside the ones that come with it."""


def make_backend(settings: BackendSettings) -> Backend:
    """The backend, not started yet.

    Raises:
        ConfigError: If no such backend exists.
    """
    module_name, _, class_name = BACKENDS.get(settings.backend, settings.backend).partition(":")
    if not class_name:
        raise ConfigError(f"unknown backend {settings.backend!r}; use one of {sorted(BACKENDS)}, or module:Class")
    try:
        make = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"backend {settings.backend!r} cannot be imported: {error}") from error
    backend: Backend = make(settings)
    return backend
