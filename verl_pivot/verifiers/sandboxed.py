"""Runs the programs of verifiers in the sandbox, and turns how a program ended into a verdict's reason."""

from collections.abc import Sequence

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.execution import Program, Result, Status
from verl_pivot.sandbox.shared import shared_sandbox
from verl_pivot.types import Verdict
from verl_pivot.verifiers.verdicts import Reason, undecided

DEADLINE_SECONDS = 300.0
"""Seconds for all programs of one verdict, with the time in queues and for retries."""

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


async def execute(programs: Sequence[Program]) -> list[Result]:
    """Run programs in the event loop's sandbox; the results are in the programs' order.

    Raises:
        SandboxRequestError: If a program may not be sent, as with a language that no node has or too large files.
        SandboxError: If the system could not run one of them.
    """
    return await (await shared_sandbox()).run_many(programs, deadline_seconds=DEADLINE_SECONDS)


def size_of_result(result: Result) -> int:
    """Characters that a program printed, and bytes of the files that were fetched."""
    return len(result.stdout) + sum(map(len, result.files.values()))


def sandbox_failed(error: SandboxError) -> Verdict:
    """Verdict that the sandbox failed, which says nothing about the action."""
    return undecided(Reason.SANDBOX_FAILED, str(error))
