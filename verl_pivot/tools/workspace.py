"""Workspace: metadata, state and one sandbox session that the calls of one trajectory share."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from verl_pivot.errors import SandboxRequestError, ToolFailureError
from verl_pivot.sandbox.execution import Limits, Result
from verl_pivot.sandbox.host_functions import HostFunction
from verl_pivot.sandbox.session import Session
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.types import JsonObject

StateT = TypeVar("StateT")


class Workspace:
    """State of one trajectory that its tools share; closed when the trajectory ends."""

    def __init__(self, metadata: JsonObject | None = None) -> None:
        self.metadata: JsonObject = metadata or {}
        """Decoded column `metadata` of the trajectory's row."""
        self._states: dict[type, object] = {}
        self._states_lock = threading.RLock()  # held by a class whose constructor asks for other states
        self._held: dict[object, object] = {}
        self._session: Session | None = None
        self._session_lock = asyncio.Lock()

    @property
    def is_unused(self) -> bool:
        """Whether no tool has kept anything here."""
        return not self._states and not self._held and self._session is None

    def state(self, kind: Callable[[], StateT]) -> StateT:
        """This trajectory's own instance of a class, made at the first call.

        Example:
            basket = workspace.state(Basket)
        """
        with self._states_lock:
            if kind not in self._states:
                self._states[kind] = kind()  # type: ignore[index]  # a class is a callable
            return self._states[kind]  # type: ignore[index,return-value]

    def hold(self, owner: object, thing: object) -> None:
        """Keep what a tool opened for this trajectory; the tool's owner closes it."""
        self._held[owner] = thing

    def held(self, owner: object) -> object:
        """The object that `hold` kept for that owner; None if there is none."""
        return self._held.get(owner)

    async def run_cell(self, code: str, limits: Limits) -> Result:
        """Run a cell in the trajectory's interpreter, which the first cell starts; parallel cells wait for each other.

        Args:
            code: Python code.
            limits: Limits of the cell; for the whole session, all but `wall_seconds` are those of the first cell.

        Raises:
            ToolFailureError: If the session cannot be opened as the row asks.
            SandboxError: If the sandbox failed; SessionLostError if the interpreter and its variables were lost.
        """
        async with self._session_lock:
            if self._session is None:
                self._session = await self.open_session(limits)
            return await self._session.run(code, wall_seconds=limits.wall_seconds)

    async def open_session(self, limits: Limits, functions: Sequence[HostFunction] = ()) -> Session:
        """Open a session in the root file system that the row names in `metadata.sandbox_root`; the caller closes it.

        Args:
            limits: Limits of the session.
            functions: Functions of the host that its cells may call.

        Raises:
            ToolFailureError: If the row's root is no text, or no node has it.
            SandboxError: If no node opened the session.
        """
        root = self.metadata.get("sandbox_root", "")
        if not isinstance(root, str):
            raise ToolFailureError(
                f"the row's metadata.sandbox_root must be the name of a root file system, got {root!r}"
            )
        try:
            return await (await shared_sandbox()).open(limits=limits, root=root, functions=functions)
        except SandboxRequestError as error:  # nothing of the request comes from the policy
            raise ToolFailureError(f"the session of the row cannot be opened: {error}") from error

    async def close(self) -> None:
        """End the session, if there is one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
