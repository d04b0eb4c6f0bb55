"""What the calls of one trajectory share: its row, and one sandbox session, opened at its first use."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from verl_pivot.sandbox.execution import Limits, Result
from verl_pivot.sandbox.session import Session
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.types import JsonObject

StateT = TypeVar("StateT")


class Workspace:
    """One per trajectory; closed when it ends, however it ends."""

    def __init__(self, metadata: JsonObject | None = None) -> None:
        self.metadata: JsonObject = metadata or {}
        """The row's column of this name, decoded."""
        self._states: dict[type, object] = {}
        self._session: Session | None = None
        self._session_lock = asyncio.Lock()

    def state(self, kind: Callable[[], StateT]) -> StateT:
        """This trajectory's own instance of a class, made at its first use.

        Example:
            basket = workspace.state(Basket)
        """
        if kind not in self._states:
            self._states[kind] = kind()  # type: ignore[index]  # a class is a callable
        return self._states[kind]  # type: ignore[index,return-value]

    async def run_cell(self, code: str, limits: Limits) -> Result:
        """Run a cell in the trajectory's interpreter; of parallel calls one after the other.

        Args:
            code: Python.
            limits: Those of the first cell hold for the session; `wall_seconds` of each for itself.

        Raises:
            SandboxError: If the system failed; SessionLostError once the variables are gone.
        """
        async with self._session_lock:
            if self._session is None:
                self._session = await (await shared_sandbox()).open(limits=limits)
            return await self._session.run(code, wall_seconds=limits.wall_seconds)

    async def close(self) -> None:
        """End the session; harmless to repeat."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
