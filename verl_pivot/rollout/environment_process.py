"""Process of a foreign environment that drives the policy -> its report; its process group is then killed."""

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from verl_pivot.child_process import ChildProcess, start_child
from verl_pivot.engines.server import no_proxy_for_loopback
from verl_pivot.errors import ToolFailureError
from verl_pivot.rollout.model_gateway import PolicyEndpoint

ResultT = TypeVar("ResultT")

REPORT_BYTES = 1 << 20
"""Last bytes of standard output that are kept; a report is a line within them."""
ERROR_BYTES = 2000
"""Last bytes of standard error that are kept."""
REST_SECONDS = 1.0
"""Seconds in which the rest of the outputs of a process that has ended is read."""
_POLL_SECONDS = 0.5


class EnvironmentReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Report of an environment about a finished trajectory: the last line that its process prints, as JSON."""

    reward: float | None = None
    """Outcome, in the environment's own scale; None leaves it to the row's own reward."""
    metrics: Mapping[str, float] = {}
    """Figures for the dumps of rollouts."""
    error: str = ""
    """What failed in the environment, which masks the trajectory; "" if nothing did."""


class EnvironmentHangsError(ToolFailureError):
    """An environment sends the policy no request and does not end."""


async def run_environment(
    command: Sequence[str], task: Mapping[str, Any], endpoint: PolicyEndpoint, *, is_stuck: Callable[[], bool]
) -> EnvironmentReport:
    """Run an environment's process with one task.

    Args:
        command: Program and arguments.
        task: The task, which the process reads from its standard input as JSON.
        endpoint: Endpoint of the policy, passed in the variables OPENAI_BASE_URL and OPENAI_API_KEY.
        is_stuck: Whether the process has been silent for too long, asked twice a second.

    Raises:
        ToolFailureError: If the process cannot be started, fails, hangs, or reports nothing that can be read.
    """
    variables = {
        **os.environ,
        **no_proxy_for_loopback(os.environ),
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
    }
    try:
        process = await start_child(command, env=variables)
    except OSError as error:
        raise ToolFailureError(f"the environment {command[0]} does not start: {error}") from error
    outputs = ProcessOutputs(process)
    feeding = asyncio.create_task(_feed(process, msgspec.json.encode(task)))
    try:
        await ended(asyncio.ensure_future(process.wait()), command[0], is_stuck)
    finally:
        feeding.cancel()
        process.kill_group()
        await process.wait()
        await outputs.end()
        process.close()
    output, errors = outputs.last_line, outputs.errors
    if process.returncode:
        detail = f"ended with exit code {process.returncode}{last_line(errors)}"
        raise ToolFailureError(f"the environment {command[0]} {detail}")
    return _report(command[0], output)


async def ended(waiting: "asyncio.Future[ResultT]", name: str, is_stuck: Callable[[], bool]) -> ResultT:
    """Result that an environment gives at its end.

    Raises:
        EnvironmentHangsError: If it hangs.
    """
    while not (await asyncio.wait({waiting}, timeout=_POLL_SECONDS))[0]:
        if is_stuck():
            raise EnvironmentHangsError(
                f"the environment {name} hangs: it sends the policy no request and does not end"
            )
    return await waiting


async def _feed(process: ChildProcess, task: bytes) -> None:
    with suppress(OSError):  # the process need not read its task
        process.stdin.write(task)
        await process.stdin.drain()
    process.stdin.close()


class ProcessOutputs:
    """The ends of both outputs of a process, which are read while it runs."""

    def __init__(self, process: ChildProcess) -> None:
        """Begin to read."""
        self._kept = {"stdout": b"", "stderr": b""}
        self._reading = [
            asyncio.create_task(self._read("stdout", process.stdout, REPORT_BYTES)),
            asyncio.create_task(self._read("stderr", process.stderr, ERROR_BYTES)),
        ]

    async def _read(self, name: str, stream: asyncio.StreamReader, most: int) -> None:
        while chunk := await stream.read(1 << 16):
            self._kept[name] = (self._kept[name] + chunk)[-most:]

    async def end(self) -> None:
        """Read what a process that has ended left in its pipes, which its descendants may keep open."""
        await asyncio.wait(self._reading, timeout=REST_SECONDS)
        for each in self._reading:
            each.cancel()
        await asyncio.wait(self._reading)

    @property
    def last_line(self) -> bytes:
        """Last line of standard output."""
        lines = self._kept["stdout"].strip().splitlines()
        return lines[-1] if lines else b""

    @property
    def errors(self) -> bytes:
        """End of standard error."""
        return self._kept["stderr"]


def _report(name: str, line: bytes) -> EnvironmentReport:
    try:
        report = msgspec.json.decode(line, type=EnvironmentReport)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        shown = line[:200].decode(errors="replace")
        problem = f"ended with {shown!r}, which is not a report: {error}"
        raise ToolFailureError(f"the environment {name} {problem}") from error
    return checked(name, report)


def checked(name: str, report: EnvironmentReport) -> EnvironmentReport:
    """The report, checked for failures.

    Raises:
        ToolFailureError: If it says that something failed, or its reward is no finite number.
    """
    if report.error:
        raise ToolFailureError(f"the environment {name} failed: {report.error[:1000]}")
    if report.reward is not None and not math.isfinite(report.reward):
        raise ToolFailureError(f"the environment {name} gives the reward {report.reward}, which is not a finite number")
    return report


def last_line(errors: bytes) -> str:
    """Last line of a process's standard error, for a failure's description; "" if it is empty."""
    said = errors.decode(errors="replace").strip().splitlines()[-1:]
    return f"; its stderr ends with {said[0]!r}" if said else ""
