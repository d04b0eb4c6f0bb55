"""Messages between a lane and its own processes, typed for both sides: tasks, and reports of what happened.

Imported for the type checker alone, as messages.py is.
"""

from typing import Literal, TypeAlias, TypedDict

from verl_pivot.sandbox.lane.messages import FunctionFields, ProgramKind, TerminalFields


class ResourceLimits(TypedDict):
    """Limits that the kernel enforces on each process."""

    cpu_seconds: int
    data_bytes: int
    file_bytes: int
    num_processes: int
    num_open_files: int


class StartingPlace(TypedDict):
    """Where a program or interpreter starts."""

    environment: dict[str, str]
    """Variables that are set on top of the zygote's."""
    folder: str
    """Folder below the working directory; empty for none."""


class ProgramTask(TypedDict):
    """Task of a forked process: run Python code, or execute a command."""

    kind: ProgramKind
    argv: list[str]
    code: bytes
    files: dict[str, bytes]
    limits: ResourceLimits
    place: StartingPlace
    is_compiler: bool
    """Whether it compiles the program: then it stays in the working directory."""
    terminal: TerminalFields | None
    """Terminal in place of stdin, stdout and stderr; None for the streams that come with the order."""


class CellsTask(TypedDict):
    """Task of a forked process: run the cells of a session, which come one by one."""

    kind: Literal["cells"]
    files: dict[str, bytes]
    limits: ResourceLimits
    place: StartingPlace
    terminal: TerminalFields | None
    """Terminal in place of stdout and stderr; None for the streams that come with the order."""
    functions: list[FunctionFields]
    """Functions of the host that cells may call."""


class FilesTask(TypedDict):
    """Task of a forked process: write files, then read others; see FilesReply for the answer."""

    kind: Literal["files"]
    is_alone: bool
    """Whether to end every other process of the pod first."""
    files: dict[str, bytes]
    fetch: list[str]
    max_bytes: int
    limits: ResourceLimits


LaneTask: TypeAlias = ProgramTask | CellsTask | FilesTask


PodEntry: TypeAlias = tuple[int, tuple[int, int, str, tuple[str, ...]] | None, bool, int | None, bool]
"""How a forked process enters its pod: namespaces to join; for the first process, the size of /tmp in bytes, the number
of files in it, the name of the root file system and the folders to hide, else None; whether to raise the loopback
interface; its user id in the lane, or None for the lane's own; whether it leads a session of processes, which a
terminal needs."""

ZygoteReport: TypeAlias = (
    tuple[Literal["warming"], str]
    | tuple[Literal["failed_warm_up"], str]
    | tuple[Literal["ready"]]
    | tuple[Literal["forked"], int, int]
    | tuple[Literal["failed"], int, str]
    | tuple[Literal["exited"], int, int, float, int]
)
"""Report of a zygote to its lane: ("warming", name of the warm-up that begins), ("failed_warm_up", reason), ("ready",),
("forked", number of the request, process id), ("failed", number of the request, reason) or ("exited", process id, wait
status, CPU seconds, peak memory in bytes)."""
