"""Sizes, backend, service and progress bars, which all parts of the bench share."""

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.local_service import LocalService, acquire, release
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.lane_backend import ZygoteBackend

Advance = Callable[[int], None]
"""Function that moves a progress bar by a number of steps."""
LOG_SECONDS = 30.0
"""Seconds between two lines of progress if there is no terminal."""
QUIET_SECONDS = 15.0
"""Most seconds that the service has to end cancelled requests."""
_EXECUTIONS = re.compile(r"^sandbox_executions_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSizes:
    """Numbers of calls and rounds that the bench measures; the targets are stated for the defaults."""

    num_rounds: int = 5
    """Rounds in which two things are measured in turn."""
    num_bwrap_science: int = 18
    """Calls per round that import numpy and sympy under bubblewrap."""
    num_bwrap_bare: int = 200
    """Calls per round that import nothing under bubblewrap."""
    num_backend_calls: int = 1000
    """Calls per round on the backend in this process."""
    num_alone: int = 100
    """Calls per round with one in flight."""
    num_warm_calls: int = 300
    """Calls per round of programs that use sympy."""
    num_first_uses: int = 15
    """Programs that use a library, with its warm-up and without."""
    num_http_calls: int = 2000
    """Calls per round over HTTP."""
    num_clients: int = 64
    num_calls: int = 45_000
    """Calls of all clients, submitted at once."""
    num_sleepers: int = 1000
    """Programs that sleep at the same time."""
    num_cells: int = 1000
    num_forks: int = 100
    num_host_calls: int = 1000
    """Calls of a function of the host by one cell."""
    num_notebooks: int = 256
    """Notebooks that are open at the same time."""
    num_honest: int = 200
    """Honest calls beside each kind of hostile program."""
    num_hostile: int = 32
    """Hostile programs of one kind at a time."""
    num_soak: int = 10_000
    """Executions of the soak."""
    num_soak_warm_up: int = 500
    """Executions before the soak's first measurement."""


QUICK = BenchSizes(
    num_rounds=2,
    num_bwrap_science=3,
    num_bwrap_bare=12,
    num_backend_calls=60,
    num_alone=20,
    num_warm_calls=12,
    num_first_uses=2,
    num_http_calls=100,
    num_calls=500,
    num_sleepers=100,
    num_cells=50,
    num_forks=10,
    num_host_calls=100,
    num_notebooks=24,
    num_honest=8,
    num_hostile=8,
    num_soak=300,
    num_soak_warm_up=100,
)
"""Sizes of a smoke run: it measures every row, but the figures are not to be quoted."""


class BenchHarness:
    """Backend, service and clients of the bench, each started when it is first asked for; `close` ends them all."""

    def __init__(self, sizes: BenchSizes, *, num_lanes: int, seed: int, console: Console) -> None:
        self.sizes = sizes
        self.rng = random.Random(seed)
        self.num_lanes = num_lanes
        self._console = console
        self._backend: ZygoteBackend | None = None
        self._service: LocalService | None = None

    async def backend(self) -> ZygoteBackend:
        """Zygote backend in this process."""
        if self._backend is None:
            self._backend = ZygoteBackend(BackendSettings(num_lanes=self.num_lanes))
            await self._backend.start()
        return self._backend

    async def service(self) -> LocalService:
        """Service in a process of its own; the backend of this process is stopped."""
        await self._stop_backend()
        return await self.service_and_backend()

    async def service_and_backend(self) -> LocalService:
        """Service in a process of its own, beside the backend of this process, to measure both in turn."""
        if self._service is None:
            self._service = await asyncio.to_thread(acquire, ("--lanes", str(self.num_lanes)))
        return self._service

    def client(self) -> Sandbox:
        """Client of the service, which must have been started."""
        assert self._service is not None
        return Sandbox([self._service.url], self._service.token, rng=random.Random(self.rng.random()))

    async def num_executions(self) -> int:
        """Number of executions that ended with a result, as the service counts them."""
        return int(sum(float(count) for count in _EXECUTIONS.findall(await self._metrics())))

    async def wait_quiet(self) -> None:
        """Wait until the service has no requests and no open sessions, for QUIET_SECONDS at most."""
        end = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < end:
            lines = (await self._metrics()).splitlines()
            if {"sandbox_in_flight 0.0", "sandbox_queued 0.0", "sandbox_sessions_open 0.0"} <= set(lines):
                return
            await asyncio.sleep(0.05)

    async def num_sessions(self) -> int:
        """Number of open sessions, as the service counts them."""
        lines = (await self._metrics()).splitlines()
        return int(float(next(line.split()[1] for line in lines if line.startswith("sandbox_sessions_open "))))

    async def _metrics(self) -> str:
        assert self._service is not None
        async with httpx.AsyncClient(trust_env=False, timeout=30.0) as http:
            return (await http.get(f"{self._service.url}/metrics")).text

    @contextmanager
    def steps(self, what: str, num_steps: int) -> Iterator[Advance]:
        """Show progress as a bar on a terminal, else in lines; yields the function that advances it."""
        bar = Progress(
            *(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        task = bar.add_task("", total=num_steps)
        begin = logged_at = time.monotonic()
        num_done = 0

        def advance(num_new: int) -> None:
            nonlocal logged_at, num_done
            num_done += num_new
            bar.update(task, advance=num_new)
            if bar.disable and time.monotonic() - logged_at > LOG_SECONDS:
                logged_at = time.monotonic()
                self._console.print(f"{what}: {num_done} of {num_steps}", highlight=False)

        with bar:
            yield advance
        self._console.print(f"{what}: {num_steps} in {time.monotonic() - begin:.1f} s", highlight=False)

    async def close(self) -> None:
        await self._stop_backend()
        service, self._service = self._service, None
        if service is not None:
            await asyncio.to_thread(release, service)

    async def _stop_backend(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.stop()
