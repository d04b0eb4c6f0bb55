"""A scripted sandbox backend: the code of a program says what the backend does with it.

print X     writes X to stdout
sleep S     ends after S seconds, with status ok
hang        never ends by itself
exit N      status error with exit code N
refuse      SandboxRequestError
klingon     UnsupportedLanguageError
break       SandboxError
break-once  SandboxError for the first run of this stdin, then ok
bug         an exception that no backend should raise
lose        SessionLostError
kill        a session's cell that ends its interpreter
call F A    a session's cell that calls function F with arguments A, and writes the reply to stdout
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from verl_pivot.errors import SandboxError, SandboxRequestError, SessionLostError, UnsupportedLanguageError
from verl_pivot.sandbox.execution import (
    Limits,
    Network,
    OnOutput,
    Program,
    Result,
    SessionState,
    Status,
    Terminal,
    Timing,
)
from verl_pivot.sandbox.host_functions import HostCall, HostFunction, PassedCalls
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.service import Service
from verl_pivot.sandbox.service.settings import ServiceSettings

TOKEN = "a token for tests"

ERRORS: Mapping[str, Exception] = {
    "refuse": SandboxRequestError("this is not allowed"),
    "klingon": UnsupportedLanguageError("language 'klingon' is not known"),
    "break": SandboxError("the lane died"),
    "break-once": SandboxError("the lane died"),
    "bug": RuntimeError("a bug"),
    "lose": SessionLostError("its interpreter died"),
}


@dataclass(slots=True)
class FakeSession:
    epoch: int = 1
    cells: list[str] = field(default_factory=list)


class FakeBackend:
    """Runs nothing, and records what it was asked to run."""

    tier = "T9"

    def __init__(self, settings: BackendSettings | None = None, *, num_slots: int = 4) -> None:
        self.num_slots = (settings.num_slots if settings else None) or num_slots
        self.started: list[Program] = []
        self.num_running = 0
        self.max_running = 0
        self.killed: list[str] = []
        """Code of the executions that were cancelled."""
        self.sessions: dict[str, FakeSession] = {}
        self.is_stopped = False
        self.typed: list[str] = []

    async def start(self) -> None:
        pass

    async def run(self, program: Program, on_output: OnOutput | None = None) -> Result:
        self.started.append(program)
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            return await self._act(program)
        except asyncio.CancelledError:
            self.killed.append(program.code)
            raise
        finally:
            self.num_running -= 1

    async def _act(self, program: Program) -> Result:
        verb, _, rest = program.code.partition(" ")
        match verb:
            case "sleep":
                await asyncio.sleep(float(rest))
            case "hang":
                await asyncio.Event().wait()
            case "exit":
                return Result(status=Status.ERROR, exit_code=int(rest))
            case "break-once" if sum(run.stdin == program.stdin for run in self.started) > 1:
                pass
            case _ if verb in ERRORS:
                raise ERRORS[verb]
        stdout = rest if verb == "print" else ""
        timing = Timing(wall_seconds=0.001)
        return Result(status=Status.OK, exit_code=0, stdout=stdout, stdout_bytes=len(stdout), timing=timing)

    def type_in(self, on_output: OnOutput, text: str) -> None:
        self.typed.append(text)

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
        await asyncio.sleep(0)  # other requests come while it opens
        self.sessions[session_id] = FakeSession()
        return False

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
        session = self.sessions[session_id]
        if epoch != session.epoch:
            raise SessionLostError(f"epoch {epoch} is gone, this is {session.epoch}")
        if code == "kill":
            session.epoch, session.cells = session.epoch + 1, []
            return Result(status=Status.SESSION_KILLED, session=self._state(session_id))
        if calls is not None and code.startswith("call "):
            _, name, arguments = code.split(" ", 2)
            code = f"print {await calls.on_call(HostCall(len(session.cells), name, arguments))}"
        result = await self.run(Program(code=code))
        session.cells.append(code)
        return Result(
            status=result.status, stdout=result.stdout, value=str(len(session.cells)), session=self._state(session_id)
        )

    def _state(self, session_id: str) -> SessionState:
        session = self.sessions[session_id]
        return SessionState(id=session_id, epoch=session.epoch, num_cells=len(session.cells))

    async def fork_session(self, session_id: str, branch_id: str, *, epoch: int) -> None:
        self.sessions[branch_id] = FakeSession(cells=list(self.sessions[session_id].cells))

    async def close_session(self, session_id: str) -> None:
        del self.sessions[session_id]

    async def stop(self) -> None:
        self.is_stopped = True


@asynccontextmanager
async def serving(backend: FakeBackend, **settings: Any) -> AsyncIterator[Service]:
    """A service on 127.0.0.1, in this event loop."""
    service = Service(ServiceSettings(token=TOKEN, **{"drain_seconds": 0.0, **settings}), backend)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after 20 seconds."""
    async with asyncio.timeout(20.0):
        while not condition():  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.005)
