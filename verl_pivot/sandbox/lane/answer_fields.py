"""Ending of a process -> the fields of an answer: status, exit code, usage, output."""

import os
import signal

from verl_pivot.sandbox.lane.running_task import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import CellAnswer, LimitFields, OutputFields, ProcessFields, SessionFields

NO_OUTPUT: "OutputFields" = {
    "stdout": "",
    "stderr": "",
    "stdout_bytes": 0,
    "stderr_bytes": 0,
    "stdout_truncated": False,
    "stderr_truncated": False,
}


_SPENT_SHARE = 0.5
"""Minimum share of a CPU limit that a process has used when the kernel ends it for the limit. The kernel counts whole
clock ticks for the limit. So it may count too much time for a process that waits and wakes in step with the ticks."""


def is_cpu_limit(number: int, cpu_seconds: float, limit_seconds: float) -> bool:
    """Whether the kernel ended a process for its CPU limit, and the process did not send itself the same signal."""
    return number in (signal.SIGXCPU, signal.SIGKILL) and cpu_seconds >= _SPENT_SHARE * limit_seconds


def process_fields(ending: Ending, limits: "LimitFields", output: "OutputFields") -> "ProcessFields":
    """Status, exit code, signal and usage of a process that the system ran to its end."""
    exit_code, number = None, None
    if os.WIFEXITED(ending.status):
        exit_code = os.WEXITSTATUS(ending.status)
        status = "error" if exit_code else "ok"
    else:
        number = os.WTERMSIG(ending.status)
        spent_cpu = is_cpu_limit(number, ending.cpu_seconds, limits["cpu_seconds"])
        status = "cpu_limit" if spent_cpu else "signaled"
    if ending.killed_by is not None:
        status, exit_code, number = ending.killed_by, None, None
    return {
        **output,
        "status": status,
        "exit_code": exit_code,
        "signal": number,
        "setup_seconds": ending.setup_seconds,
        "wall_seconds": ending.wall_seconds,
        "cpu_seconds": ending.cpu_seconds,
        "peak_memory_bytes": ending.peak_bytes,
        "had_no_core": status == "timeout" and ending.had_no_core,
    }


def cell_answer(
    session: "SessionFields",
    output: "OutputFields",
    *,
    status: str,
    value: str | None,
    error: str | None,
    wall_seconds: float,
    had_no_core: bool = False,
) -> "CellAnswer":
    """Outcome of a cell and the state of its session."""
    return {
        "kind": "cell",
        **output,
        "status": status,
        "value": value,
        "error": error,
        "wall_seconds": wall_seconds,
        "had_no_core": had_no_core,
        "session": session,
    }
