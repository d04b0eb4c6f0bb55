"""Messages between a lane and its own processes, typed for both sides: tasks, and reports of what happened.

Imported for the type checker alone, as messages.py is.
"""

from typing import Literal, NotRequired, TypeAlias, TypedDict

from verl_pivot.sandbox.lane.messages import ProgramKind


class ResourceLimits(TypedDict):
    """Limits that the kernel enforces on each process."""

    cpu_seconds: int
    data_bytes: int
    file_bytes: int
    num_processes: int
    num_open_files: int


class ProgramTask(TypedDict):
    """Task of a forked process: run Python code, or execute a command."""

    kind: ProgramKind
    argv: list[str]
    code: bytes
    files: dict[str, bytes]
    limits: ResourceLimits


class CellsTask(TypedDict):
    """Task of a forked process: run the cells of a session, which come one by one."""

    kind: Literal["cells"]
    files: dict[str, bytes]
    limits: ResourceLimits


class FilesTask(TypedDict):
    """Task of a forked process: write files, then read others; FetchedFields as JSON replaces the task."""

    kind: Literal["files"]
    is_alone: bool
    """Whether to end every other process of the pod first."""
    files: dict[str, bytes]
    fetch: list[str]
    max_bytes: int
    limits: ResourceLimits


LaneTask: TypeAlias = ProgramTask | CellsTask | FilesTask


class InterpreterFrame(TypedDict):
    """One message from a session's interpreter to the lane, in JSON. The user's code can forge it."""

    id: int
    """0 at the start, else the number of a cell, or the negative number of a fork."""
    refused: NotRequired[str]
    """Why the interpreter did not fork."""


class CellWords(TypedDict):
    """Outcome of a cell, which the session's interpreter writes in JSON. The user's code can forge it."""

    value: str | None
    """repr of the last expression."""
    error: str | None
    """Traceback of the exception that ended the cell."""


PodEntry: TypeAlias = tuple[int, tuple[int, int] | None, bool]
"""How a forked process enters its pod: namespaces to join; for the first process, the size of /tmp in bytes and the
number of files in it, else None; whether to raise the loopback interface."""

ZygoteReport: TypeAlias = (
    tuple[Literal["ready"]]
    | tuple[Literal["forked"], int, int]
    | tuple[Literal["failed"], int, str]
    | tuple[Literal["exited"], int, int, float, int]
)
"""Report of a zygote to its lane: ("ready",), ("forked", number of the request, process id), ("failed", number of the
request, reason) or ("exited", process id, wait status, CPU seconds, peak memory in bytes)."""
