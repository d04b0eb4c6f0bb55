"""The contract of what executes programs on one node: `zygote` and `bwrap_exec` behind one interface."""

from typing import Protocol

from verl_pivot.sandbox.execution import Limits, Network, Program, Result


class Backend(Protocol):
    """Runs programs in isolation. Cancelling a call ends its processes.

    Every method raises SandboxError when the system failed, and SandboxRequestError when the caller was wrong.
    """

    tier: str
    """Isolation that executions really get; see probe.py."""
    num_slots: int
    """Executions that it takes at once; more wait in the service's queue."""

    async def start(self) -> None:
        """Return when it can run programs."""
        ...

    async def run(self, program: Program) -> Result: ...

    async def open_session(self, session_id: str, *, limits: Limits, network: Network) -> None:
        """Start a Python interpreter that keeps its variables; `limits` hold for the whole session."""
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
    ) -> Result:
        """Run one cell.

        Raises:
            SessionLostError: If the interpreter of `epoch` is gone.
        """
        ...

    async def fork_session(self, session_id: str, branch_id: str, *, epoch: int) -> None:
        """Copy the interpreter with all its variables; files in its working directory are shared."""
        ...

    async def close_session(self, session_id: str) -> None: ...

    async def stop(self) -> None:
        """End every process that it started."""
        ...
