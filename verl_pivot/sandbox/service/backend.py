"""Contract of a backend, which runs the programs of one node; its settings, and the two backends of this package."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.execution import Limits, Network, OnOutput, Program, Result, Terminal
from verl_pivot.sandbox.host_functions import HostFunction, PassedCalls


class Backend(Protocol):
    """Runs programs in isolation. Cancelling a call ends its processes.

    Every method raises SandboxError if the system failed, and SandboxRequestError if the caller is at fault.
    """

    tier: str
    """Isolation that programs get, known after `start`; see bubblewrap/probe.py."""
    num_slots: int
    """Programs and cells that may run at once; more wait in the service's queue."""

    async def start(self) -> None:
        """Make everything ready; returns when programs can run."""
        ...

    async def run(self, program: Program, on_output: OnOutput | None = None) -> Result:
        """Run one program.

        Args:
            program: Program to run.
            on_output: Receiver of its output while it runs; None if nobody reads it before the end.
        """
        ...

    def type_in(self, on_output: OnOutput, text: str) -> None:
        """Type into the terminal of the program that runs with this `on_output`; ignored once it has ended."""
        ...

    async def open_session(
        self,
        session_id: str,
        *,
        limits: Limits,
        network: Network,
        root: str,
        environment: dict[str, str],
        folder: str,
        terminal: Terminal | None,
        functions: tuple[HostFunction, ...],
    ) -> bool:
        """Start a Python interpreter that keeps its variables; the limits hold for the whole session.

        Returns whether the interpreter was there already, made ahead of the session.

        Args:
            session_id: Id of the new session.
            limits: Limits of the session.
            network: Network that the session sees.
            root: Name of the root file system that it runs in; "" for none.
            environment: Variables in addition to the constant ones.
            folder: Folder below /tmp in which it starts; "" for /tmp.
            terminal: Terminal that its cells print to; None for pipes.
            functions: Functions of the host that its cells may call.
        """
        ...

    async def run_cell(
        self,
        session_id: str,
        code: str,
        *,
        epoch: int,
        wall_seconds: float,
        files: dict[str, bytes],
        fetch: tuple[str, ...],
        on_output: OnOutput | None = None,
        calls: PassedCalls | None = None,
    ) -> Result:
        """Run one cell.

        Args:
            session_id: Id of an open session.
            code: The cell.
            epoch: Number of the interpreter that the cell needs.
            wall_seconds: Wall limit of the cell.
            files: Files to write before the cell: name -> content.
            fetch: Names of files to read after the cell.
            on_output: Receiver of its output while it runs, as for `run`.
            calls: Limits and receiver of its calls of functions of the host; None if it may make none.

        Raises:
            SessionLostError: If that interpreter is gone.
        """
        ...

    async def fork_session(self, session_id: str, branch_id: str, *, epoch: int) -> None:
        """Copy the interpreter with all its variables; both then share the files of the working directory."""
        ...

    async def close_session(self, session_id: str) -> None: ...

    async def stop(self) -> None:
        """End every process that was started."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """Settings of a backend; None leaves a choice to the backend."""

    backend: str = "zygote"
    """A name in BACKENDS, or `module:Class` of your own backend, which is called with these settings."""
    num_lanes: int | None = None
    """Lanes of the zygote backend; one per core by default."""
    num_slots: int | None = None
    """Programs and cells that may run at once; 512 per lane by default, one per core for bwrap_exec."""
    min_tier: str = "T3"
    """Weakest isolation tier with which the backend starts: T1, the strongest, T2 or T3; see bubblewrap/probe.py."""
    preload: tuple[str, ...] = ("numpy", "sympy", "math_verify", "duckdb")
    """Packages that zygotes import ahead of programs; those that are not installed are left out."""
    memory_bytes: int | None = None
    """Bytes of memory for all programs together; by default half of the memory of the machine or container."""
    shares_network: bool = False
    """Whether the programs of a lane share a network namespace, without any interface up, instead of one each."""
    egress: tuple[str, ...] = ()
    """Hosts that programs with the network `proxy` reach, as egress/listed_hosts.py reads them; empty for no hosts."""
    egress_reaches_own_machine: bool = False
    """Whether listed addresses of this machine can be reached; for tests, which have no other server."""
    session_cpu_seconds: int = 3600
    """CPU seconds of a session's interpreter over all its cells, and of each process that its cells start."""
    roots_folder: Path | None = None
    """Folder of the root file systems that programs and sessions can ask for; None for none."""
    languages_file: Path | None = None
    """YAML of languages in addition to those of configs/languages.yaml."""


BACKENDS: Mapping[str, str] = {
    "zygote": "verl_pivot.sandbox.service.lane_backend:ZygoteBackend",
    "bwrap_exec": "verl_pivot.sandbox.service.bwrap_backend:BwrapExecBackend",
}
"""Name of each backend -> `module:Class`."""


def make_backend(settings: BackendSettings) -> Backend:
    """Make the backend that the settings name; `start` is not called yet.

    Raises:
        ConfigError: If there is no such backend, or it cannot be imported.
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
