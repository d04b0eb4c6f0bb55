"""EnvironmentWorker: one process of a foreign environment that plays many trajectories at once -> their reports."""

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from verl_pivot.child_process import ChildProcess, start_child
from verl_pivot.engines.server import no_proxy_for_loopback
from verl_pivot.errors import EnvironmentLostError, ToolFailureError
from verl_pivot.rollout.environment_process import (
    ERROR_BYTES,
    REPORT_BYTES,
    REST_SECONDS,
    EnvironmentHangsError,
    EnvironmentReport,
    checked,
    ended,
    last_line,
)
from verl_pivot.rollout.model_gateway import PolicyEndpoint

CANCEL_SECONDS = 60.0
"""Seconds in which the process must answer that a trajectory is cancelled; one whose event loop is blocked does not."""


class _ProcessAnswer(msgspec.Struct):
    """A line of the process: the report of one trajectory."""

    id: int
    reward: float | None = None
    metrics: Mapping[str, float] = {}
    error: str = ""

    def report(self) -> EnvironmentReport:
        return EnvironmentReport(reward=self.reward, metrics=self.metrics, error=self.error)


class EnvironmentWorker:
    """The process of one event loop. The first trajectory starts it; if it ends, the next trajectory starts another."""

    def __init__(self, command: Sequence[str], label: str) -> None:
        """Start no process yet.

        Args:
            command: Program and arguments; it speaks as environments/verifiers_process.py does.
            label: Name of the environment in messages.
        """
        self._command, self._label = tuple(command), label
        self._process: ChildProcess | None = None
        self._reading: asyncio.Task[None] | None = None
        self._pending: dict[int, asyncio.Future[EnvironmentReport]] = {}
        self._errors = b""
        self._why_killed = ""
        """Why the process was ended; "" if it was not, or ends with the event loop."""
        self._starting = asyncio.Lock()
        self._numbers = itertools.count()

    async def __aenter__(self) -> "EnvironmentWorker":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._kill()
        if self._reading is not None:
            await asyncio.wait({self._reading})

    async def play(
        self, task: Mapping[str, Any], endpoint: PolicyEndpoint, *, is_stuck: Callable[[], bool]
    ) -> EnvironmentReport:
        """Play one trajectory.

        Args:
            task: The task, as the environment wants it.
            endpoint: Endpoint of the policy.
            is_stuck: Whether the environment has been silent for too long, asked twice a second.

        Raises:
            ToolFailureError: If the environment fails or hangs; EnvironmentLostError if its process ends, or is ended
                because it hangs as a whole.
        """
        process = await self._running()
        number = next(self._numbers)
        reported: asyncio.Future[EnvironmentReport] = asyncio.get_running_loop().create_future()
        self._pending[number] = reported
        asked = {"id": number, "task": task, "base_url": endpoint.base_url, "api_key": endpoint.api_key}
        try:
            self._tell(process, asked)
            return checked(self._label, await ended(reported, self._label, is_stuck))
        except EnvironmentHangsError:
            self._tell(process, {"cancel": number})
            if not (await asyncio.wait({reported}, timeout=CANCEL_SECONDS))[0]:
                self._why_killed = "its process hangs, and was ended"
                process.kill_group()
                await asyncio.wait({reported})
            reported.result()  # raises if the process has ended
            raise
        finally:
            if self._pending.pop(number, None) is not None and not reported.done():
                reported.cancel()
                self._tell(process, {"cancel": number})

    async def _running(self) -> ChildProcess:
        async with self._starting:
            if self._process is None:
                variables = {**os.environ, **no_proxy_for_loopback(os.environ)}
                try:
                    self._process = await start_child(self._command, env=variables, limit=REPORT_BYTES)
                except OSError as error:
                    raise ToolFailureError(f"the environment {self._label} does not start: {error}") from error
                self._errors, self._why_killed = b"", ""
                self._reading = asyncio.create_task(self._read(self._process))
            return self._process

    def _tell(self, process: ChildProcess, message: Mapping[str, Any]) -> None:
        with suppress(OSError, RuntimeError):  # the process ended, and its readers say so
            process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def _read(self, process: ChildProcess) -> None:
        """Hand out the answers until the process ends; trajectories that still wait then get the reason."""
        hearing, listening = asyncio.create_task(self._hear(process)), asyncio.create_task(self._listen(process))
        dying = asyncio.ensure_future(process.wait())
        with suppress(asyncio.CancelledError):
            await asyncio.wait({hearing, dying}, return_when=asyncio.FIRST_COMPLETED)
        self._kill()
        await process.wait()
        await asyncio.wait({hearing, listening}, timeout=REST_SECONDS)  # a descendant may keep the pipes open
        hearing.cancel()
        listening.cancel()
        await asyncio.wait({hearing, listening})
        process.close()
        reason = "" if hearing.cancelled() else hearing.result()
        reason = reason or self._why_killed or f"its process ended with exit code {process.returncode}"
        failure = EnvironmentLostError(f"the environment {self._label} failed: {reason}{last_line(self._errors)}")
        self._process = None
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(failure)

    async def _hear(self, process: ChildProcess) -> str:
        """Hand out the answers to the end of the process's output; returns what is wrong with a line, or ""."""
        try:
            while line := await process.stdout.readline():
                answer = msgspec.json.decode(line, type=_ProcessAnswer)
                waiting = self._pending.get(answer.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer.report())
        except (ValueError, msgspec.DecodeError) as error:  # a line that is too long or breaks the protocol
            return f"its process wrote a line that is not an answer: {error}"
        return ""

    async def _listen(self, process: ChildProcess) -> None:
        while chunk := await process.stderr.read(1 << 16):
            self._errors = (self._errors + chunk)[-ERROR_BYTES:]

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill_group()
