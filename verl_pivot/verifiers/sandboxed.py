"""Runs the programs of verifiers in the sandbox, and turns how a program ended into a verdict's reason."""

import asyncio
import time
from collections.abc import Sequence

from verl_pivot.errors import SandboxError
from verl_pivot.loop_local import LoopLocal
from verl_pivot.sandbox.deadlines import deadline_for
from verl_pivot.sandbox.execution import Program, Result, Status
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.types import Verdict
from verl_pivot.verifiers.verdicts import Reason, undecided

DEADLINE_SECONDS = 300.0
"""Time limit in seconds for all programs of one call of `execute`, including queues and retries; programs with a limit
of more than 10 s get more, see deadlines.deadline_for."""

REASONS = {
    Status.ERROR: Reason.RUNTIME_ERROR,
    Status.SIGNALED: Reason.RUNTIME_ERROR,
    Status.TIMEOUT: Reason.TIME_LIMIT,
    Status.CPU_LIMIT: Reason.TIME_LIMIT,
    Status.MEMORY_LIMIT: Reason.MEMORY_LIMIT,
    Status.OUTPUT_LIMIT: Reason.OUTPUT_LIMIT,
    Status.COMPILE_ERROR: Reason.COMPILE_ERROR,
    Status.COMPILE_TIMEOUT: Reason.COMPILE_ERROR,
}
"""Reason for which an action is refused, by the status with which its program ended; Status.OK has none."""


_MAX_AGAIN = 4
"""Most programs of one event loop that are run again at the same time, because they got no CPU core before."""


class _RunsAgain:
    """Limit on the programs of one event loop that are run again at the same time."""

    def __init__(self) -> None:
        self.bound = asyncio.Semaphore(_MAX_AGAIN)

    async def __aenter__(self) -> "_RunsAgain":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left to close."""


_runs_again = LoopLocal(_RunsAgain)


async def execute(programs: Sequence[Program]) -> list[Result]:
    """Run programs in the event loop's sandbox; the results are in the programs' order.

    A program that timed out because it got no CPU core is run again, beside few others. So no status is caused by a
    busy machine.

    Raises:
        SandboxRequestError: If a program may not be sent, as with a language that no node has or too large files.
        SandboxError: If the system could not run one of them.
    """
    longest = max((program.limits.wall_seconds for program in programs), default=0.0)
    seconds = deadline_for(longest, DEADLINE_SECONDS)
    deadline = time.monotonic() + seconds
    results = await (await shared_sandbox()).run_many(programs, deadline_seconds=seconds)
    pairs = zip(programs, results, strict=True)
    return list(await asyncio.gather(*(_with_core(program, result, deadline, seconds) for program, result in pairs)))


async def _with_core(program: Program, result: Result, deadline: float, deadline_seconds: float) -> Result:
    """The result, or that of a later run if there was no CPU core for the program."""
    while _lacks_core(result):
        async with (await _runs_again.get()).bound:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0.0:
                raise SandboxError(f"the machine had no core for the program within {deadline_seconds:.0f} s")
            (result,) = await (await shared_sandbox()).run_many([program], deadline_seconds=seconds_left)
    return result


def _lacks_core(result: Result) -> bool:
    return result.had_no_core and result.status in (Status.TIMEOUT, Status.COMPILE_TIMEOUT)


def size_of_result(result: Result) -> int:
    """Characters that a program printed, and bytes of the files that were fetched."""
    return len(result.stdout) + sum(map(len, result.files.values()))


def sandbox_failed(error: SandboxError) -> Verdict:
    """Verdict that the sandbox failed, which says nothing about the action."""
    return undecided(Reason.SANDBOX_FAILED, str(error))
