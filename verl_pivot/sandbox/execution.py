"""Program -> Result: what one execution is given, what it may use, and what came of it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from verl_pivot.errors import SandboxRequestError

MIB = 1024**2
MAX_CODE_BYTES = 8 * MIB
MAX_STDIN_BYTES = 16 * MIB
MAX_FILES = 64
MAX_FILE_BYTES = 8 * MIB
"""Of all files of one program together; the same for what is fetched."""
_FILE_NAME = re.compile(r"[^/\0]+(/[^/\0]+)*")


class Status(StrEnum):
    """How a program ended. There is no member for "the sandbox broke": that is a SandboxError, never a result."""

    OK = "ok"
    ERROR = "error"
    """It ended by itself with an exit code that is not 0."""
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    SESSION_KILLED = "session_killed"
    """The cell would not end, or ended its interpreter: the session goes on in a fresh one, with the next epoch."""


class Network(StrEnum):
    """What an execution sees of a network; none of them reaches another machine or this one's services."""

    NONE = "none"
    """No interface is up; the namespace is shared by the executions of a lane."""
    PRIVATE = "private"
    """A namespace of its own, with no interface up."""
    LOOPBACK = "loopback"
    """A namespace of its own in which 127.0.0.1 answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on one execution, each enforced from outside the program; out of range is refused, not clamped."""

    wall_seconds: float = 10.0
    """From the program's start, not counting the time it was ready to run and no core was free."""
    cpu_seconds: int = 10
    """Of each process."""
    memory_bytes: int = 1024 * MIB
    """Of all its processes together, above what a bare interpreter takes."""
    output_bytes: int = 64 * 1024
    """Kept of each of stdout and stderr; the rest is dropped and the result says so."""
    num_processes: int = 64
    tmp_bytes: int = 64 * MIB
    num_tmp_files: int = 4096
    num_open_files: int = 256

    def __post_init__(self) -> None:
        for item in fields(self):
            low, high = LIMIT_RANGES[item.name]
            value = getattr(self, item.name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise SandboxRequestError(f"limits.{item.name} must be a number, got {value!r}")
            if item.name != "wall_seconds" and not isinstance(value, int):
                raise SandboxRequestError(f"limits.{item.name} must be a whole number, got {value!r}")
            if not low <= value <= high:
                raise SandboxRequestError(f"limits.{item.name} must be from {low} to {high}, got {value}")


LIMIT_RANGES: Mapping[str, tuple[float, float]] = {
    "wall_seconds": (0.01, 600.0),
    "cpu_seconds": (1, 600),
    "memory_bytes": (16 * MIB, 64 * 1024 * MIB),
    "output_bytes": (0, 16 * MIB),
    "num_processes": (1, 1024),
    "tmp_bytes": (1 * MIB, 4096 * MIB),
    "num_tmp_files": (16, 1_000_000),
    "num_open_files": (16, 4096),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program with its input.

    Example:
        Program(code="print(input())", stdin="42", limits=Limits(wall_seconds=2.0))

    Raises:
        SandboxRequestError: If a name, size or limit is not allowed.
    """

    code: str
    language: str = "python"
    stdin: str = ""
    args: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Placed in the working directory before the start: relative name -> content."""
    fetch: tuple[str, ...] = ()
    """Relative names of regular files to bring back afterwards."""
    limits: Limits = Limits()
    network: Network = Network.NONE

    def __post_init__(self) -> None:
        _check_size("code", len(self.code), MAX_CODE_BYTES)
        _check_size("stdin", len(self.stdin), MAX_STDIN_BYTES)
        _check_size("files", sum(map(len, self.files.values())), MAX_FILE_BYTES)
        if len(self.files) > MAX_FILES or len(self.fetch) > MAX_FILES:
            raise SandboxRequestError(f"at most {MAX_FILES} files, got {len(self.files)} in and {len(self.fetch)} out")
        for name in (*self.files, *self.fetch):
            check_file_name(name)
        for text in self.args:
            if "\0" in text:
                raise SandboxRequestError(f"an argument holds a NUL byte: {text!r}")


def check_file_name(name: str) -> None:
    """Raise SandboxRequestError unless `name` is relative, below the working directory and without tricks."""
    parts = name.split("/")
    if not _FILE_NAME.fullmatch(name) or {".", ".."} & set(parts) or len(name) > 255:
        raise SandboxRequestError(f"file name {name!r} must be relative, without '.', '..' or NUL, up to 255 long")


def _check_size(what: str, size: int, maximum: int) -> None:
    if size > maximum:
        raise SandboxRequestError(f"{what} of {size} bytes is larger than {maximum}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the time of one execution went, in seconds."""

    queue_seconds: float = 0.0
    """From its arrival at the service to its start."""
    setup_seconds: float = 0.0
    """Namespaces and fork."""
    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    """User and system time of the program and the children it waited for; None where the backend cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """Which interpreter a cell ran in."""

    id: str
    epoch: int
    """Counts interpreters: a larger number than last time means that all variables are gone."""
    num_cells: int
    """Cells run in this interpreter, this one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a program did. The only source of status and exit code is the kernel, never the program's own words.

    Example:
        Result(status=Status.ERROR, exit_code=3, stderr="Traceback ...", stderr_bytes=120)
    """

    status: Status
    exit_code: int | None = None
    """None unless it ended by itself."""
    signal: int | None = None
    stdout: str = ""
    """UTF-8; bytes that are not are written as \\xNN."""
    stderr: str = ""
    stdout_bytes: int = 0
    """Before it was cut to limits.output_bytes."""
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    value: str | None = None
    """A session's cell: repr of its last expression, as a notebook displays it."""
    error: str | None = None
    """A session's cell: the traceback of the exception that ended it. Also in stderr."""
    compile_output: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    file_errors: Mapping[str, str] = field(default_factory=dict)
    """Why a fetched name did not come back."""
    timing: Timing = Timing()
    peak_memory_bytes: int | None = None
    session: SessionState | None = None
    tier: str = ""
    """Which isolation it ran under; see probe.py."""
    node: str = ""
