"""Ending of a process -> the fields of an answer: status, exit code, usage, output, files."""

import os
import signal

from verl_pivot.sandbox.lane.frames import decode_object
from verl_pivot.sandbox.lane.running_task import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import FetchedFields, LimitFields, OutputFields, ProcessFields

_MAX_ANSWER_BYTES = 16 * 1024**2


def process_fields(ending: Ending, limits: "LimitFields", output: "OutputFields") -> "ProcessFields":
    """Status, exit code, signal and usage of a process that the system ran to its end."""
    exit_code, number = None, None
    if os.WIFEXITED(ending.status):
        exit_code = os.WEXITSTATUS(ending.status)
        status = "error" if exit_code else "ok"
    else:
        number = os.WTERMSIG(ending.status)
        spent_cpu = number == signal.SIGKILL and ending.cpu_seconds >= limits["cpu_seconds"]
        status = "cpu_limit" if number == signal.SIGXCPU or spent_cpu else "signaled"
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
    }


def fetched_fields(payload: int, ending: Ending, names: list[str]) -> "FetchedFields":
    """Answer of a FilesTask, which its process wrote into the memory file `payload`."""
    size = os.fstat(payload).st_size
    if ending.failure is not None or ending.status != 0 or size > _MAX_ANSWER_BYTES:
        reason = ending.failure or "it could not be read: the reader was ended by the program"
        return {"files": {}, "file_errors": dict.fromkeys(names, reason)}
    answer = decode_object(os.pread(payload, size, 0))
    return {"files": answer["files"], "file_errors": answer["file_errors"]}
