"""Program -> Result: code with its input and limits, and how it ended, with its output and files."""

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from verl_pivot.errors import SandboxRequestError

MIB = 1024**2
MAX_CODE_BYTES = 8 * MIB
MAX_STDIN_BYTES = 16 * MIB
MAX_FILES = 64
"""Most files that one program may get, and most files that may be fetched from it."""
MAX_FILE_BYTES = 8 * MIB
"""Most bytes of all files that one program gets, and of all files that are fetched from it."""
_ROOT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,254}")
MAX_ENVIRONMENT_BYTES = 64 * 1024
MAX_FOLDER_DEPTH = 8
MAX_TERMINAL_SIZE = 1000
"""Most columns and most rows of a terminal."""
_KEPT_VARIABLES = ("PATH", "PWD")
"""Variables that only the sandbox sets: the search path of commands, and the folder in which a program starts."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_NAME = re.compile(r"[^/\0]+(/[^/\0]+)*")


class Status(StrEnum):
    """How a program ended; a failure of the sandbox itself has no status, it is raised as a SandboxError."""

    OK = "ok"
    ERROR = "error"
    """The program ended by itself with an exit code other than 0."""
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    SESSION_KILLED = "session_killed"
    """The cell ended its interpreter, or had to be killed; the session goes on in a fresh one with the next epoch."""


class Network(StrEnum):
    """Network of one execution, in a network namespace; the only way out of it is the proxy of the service."""

    NONE = "none"
    """No interface is up; with `--shared-network` all executions of a lane are in one network namespace."""
    PRIVATE = "private"
    """No interface is up, in a network namespace of the execution's own."""
    LOOPBACK = "loopback"
    """127.0.0.1 works, in a network namespace of the execution's own."""
    PROXY = "proxy"
    """As LOOPBACK, with a proxy on port 3128 that leads to the hosts that the service lists; variables such as
    http_proxy name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one execution, enforced from outside the program; a value out of range is refused, not clamped.

    Raises:
        SandboxRequestError: If a value is not in its range of LIMIT_RANGES.
    """

    wall_seconds: float = 10.0
    """Seconds from the program's start to its end. Time in which it was ready to run and no core was free does not
    count, up to a bound."""
    cpu_seconds: int = 10
    """CPU seconds of each process; in a session, CPU seconds of each cell."""
    memory_bytes: int = 1024 * MIB
    """Bytes of memory of all processes together, without those that a bare interpreter takes."""
    output_bytes: int = 64 * 1024
    """Bytes kept of stdout, and as many of stderr; the rest is dropped, and the result says so."""
    num_processes: int = 64
    """Most processes and threads at once."""
    tmp_bytes: int = 64 * MIB
    """Bytes that /tmp can hold; no single file can be larger."""
    num_tmp_files: int = 4096
    """Most files and folders in /tmp."""
    num_open_files: int = 256
    """Most open files of each process."""

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
class Terminal:
    """Terminal that a program runs in, instead of pipes.

    Raises:
        SandboxRequestError: If a size is not from 1 to MAX_TERMINAL_SIZE.
    """

    columns: int = 80
    rows: int = 24

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TERMINAL_SIZE:
                raise SandboxRequestError(
                    f"terminal.{item.name} must be a whole number from 1 to {MAX_TERMINAL_SIZE}, got {value!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program with its input and limits.

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
    """{relative name: content} of files that are written into the working directory before the start."""
    fetch: tuple[str, ...] = ()
    """Relative names of regular files to bring back after the end."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """{name: value} of environment variables; they are added to the constant ones, or replace them."""
    folder: str = ""
    """Folder below /tmp in which the program starts, made if it is missing; empty for /tmp itself. Names of files stay
    relative to /tmp."""
    limits: Limits = Limits()
    network: Network = Network.NONE
    compile_seconds: float | None = None
    """Seconds that the compiler gets; None takes the language's own limit."""
    root: str = ""
    """Name of the root file system to run in, a folder of `verl-pivot sandbox serve --roots`; "" for none."""
    terminal: Terminal | None = None
    """Terminal that the program runs in: `stdin` is typed into it, and all its output is stdout. None for pipes."""

    def __post_init__(self) -> None:
        low, high = LIMIT_RANGES["wall_seconds"]
        if self.compile_seconds is not None and not low <= self.compile_seconds <= high:
            raise SandboxRequestError(f"compile_seconds must be from {low} to {high}, got {self.compile_seconds}")
        check_root_name(self.root)
        _check_size("code", len(self.code), MAX_CODE_BYTES)
        _check_size("stdin", len(self.stdin), MAX_STDIN_BYTES)
        _check_size("files", sum(map(len, self.files.values())), MAX_FILE_BYTES)
        if len(self.files) > MAX_FILES or len(self.fetch) > MAX_FILES:
            raise SandboxRequestError(
                f"files and fetch: at most {MAX_FILES} names each, got {len(self.files)} and {len(self.fetch)}"
            )
        for name in (*self.files, *self.fetch):
            check_file_name(name)
        check_place(self.environment, self.folder)
        for text in self.args:
            if "\0" in text:
                raise SandboxRequestError(f"an argument holds a NUL byte: {text!r}")


def check_place(environment: Mapping[str, str], folder: str) -> None:
    """Check the variables of a program or session, and the folder in which it starts.

    Raises:
        SandboxRequestError: If a name or value cannot be used, or the folder could lie outside of /tmp.
    """
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name) or name in _KEPT_VARIABLES:
            raise SandboxRequestError(f"environment: {name!r} cannot be set: use a valid name, not PATH or PWD")
        if "\0" in value:
            raise SandboxRequestError(f"environment: the value of {name} holds a NUL byte: {value!r}")
    num_bytes = sum(len(name) + len(value.encode("utf-8", "surrogatepass")) for name, value in environment.items())
    _check_size("environment", num_bytes, MAX_ENVIRONMENT_BYTES)
    if folder:
        check_file_name(folder)
    if folder.count("/") >= MAX_FOLDER_DEPTH:
        raise SandboxRequestError(f"folder {folder!r} has more than {MAX_FOLDER_DEPTH} parts")


def check_file_name(name: str) -> None:
    """Check that a name cannot lead out of the working directory.

    Raises:
        SandboxRequestError: If it is absolute, empty or too long, or has "." or ".." in it.
    """
    parts = name.split("/")
    if not _FILE_NAME.fullmatch(name) or {".", ".."} & set(parts) or len(name) > 255:
        raise SandboxRequestError(
            f"file name {name!r} must be relative, without '.', '..' or NUL, and at most 255 characters long"
        )


def check_root_name(name: str) -> None:
    """Check that the name of a root file system is one plain name, or "".

    Raises:
        SandboxRequestError: If it is not.
    """
    if name and not _ROOT_NAME.fullmatch(name):
        raise SandboxRequestError(
            f"root {name!r} must be one name of letters, digits and any of ._@+-, at most 255 characters long"
        )


def _check_size(what: str, size: int, maximum: int) -> None:
    if size > maximum:
        raise SandboxRequestError(f"{what} of {size} bytes is larger than {maximum}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one execution, by what they were spent on."""

    queue_seconds: float = 0.0
    """Seconds from the arrival at the service until the setup began."""
    setup_seconds: float = 0.0
    """Seconds to make the namespaces and to fork."""
    wall_seconds: float = 0.0
    """Seconds from the program's start to its end."""
    cpu_seconds: float | None = None
    """User and system seconds of the program and the children that it waited for; None if the backend cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Piece of a program's output, printed since the previous piece; the result contains it too."""

    stdout: bytes = b""
    stderr: bytes = b""


OnOutput = Callable[[Output], Awaitable[None]]
"""Function that receives output while a program runs; it is called with the next piece after it has returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """State of a session after a cell."""

    id: str
    epoch: int
    """Number of the session's interpreter; if it grows, all variables and files are gone."""
    num_cells: int
    """Cells that ran in this interpreter, this one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a program ended, with its output; status and exit code come from the kernel, never from what it printed.

    Example:
        Result(status=Status.ERROR, exit_code=3, stderr="Traceback ...", stderr_bytes=120)
    """

    status: Status
    exit_code: int | None = None
    """Exit code; None unless the program ended by itself."""
    signal: int | None = None
    """Number of the signal that ended the program; None if none did."""
    stdout: str = ""
    """Output as text; bytes that are not UTF-8 appear in it as \\xNN."""
    stderr: str = ""
    stdout_bytes: int = 0
    """Bytes that were written, before the text was cut to limits.output_bytes."""
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    value: str | None = None
    """repr of a cell's last expression, as a notebook displays it; None for a program, or without a value."""
    error: str | None = None
    """Traceback of the exception that ended a cell, also in stderr; None for a program, or without an exception."""
    compile_output: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """{name: content} of the fetched files."""
    file_errors: Mapping[str, str] = field(default_factory=dict)
    """{name: reason} of the files that could not be fetched."""
    timing: Timing = Timing()
    peak_memory_bytes: int | None = None
    """Most memory of all processes at once; None if the backend cannot tell."""
    had_no_core: bool = False
    """Whether the program was ended at its wall limit for lack of a free core, which says nothing of the program. False
    if the backend cannot tell."""
    session: SessionState | None = None
    """State of the session; None for a program."""
    tier: str = ""
    """Isolation tier of the node, such as "T2"; docs/sandbox.md lists them."""
    node: str = ""
    """Name of the node that ran the program."""
