"""Messages between the service and a lane in JSON, typed for both sides: every request and every answer.

The lane's modules import this one for the type checker alone. Otherwise it would delay the start of a lane by 3 ms, and
`typing` that of each zygote by 10 ms more.
"""

from typing import Any, Literal, TypeAlias, TypedDict

EncodedFiles: TypeAlias = dict[str, str]
"""{file name: content in base64}."""

ProgramKind: TypeAlias = Literal["python", "exec"]
"""python: the forked interpreter runs the code itself. exec: it executes a command."""


class ZygotePlan(TypedDict):
    """Work of a zygote before it forks."""

    modules: list[str]
    """Modules that it imports; those that are not installed are left out."""
    warm_ups: dict[str, str]
    """Name of one of the modules -> program that runs if the module was imported."""
    import_from: list[str]
    """Folders that it imports from, before those of Python's own modules."""
    startup: str
    """Cell that runs ahead of sessions, so that each starts with the names that it defines; empty for none."""


class UserIdFields(TypedDict):
    """User ids that the programs of a lane take in turn, as pods.UserIds."""

    first: int
    num_ids: int


class LimitFields(TypedDict):
    """Limits of an execution, field by field as in sandbox.execution.Limits."""

    wall_seconds: float
    cpu_seconds: int
    memory_bytes: int
    output_bytes: int
    num_processes: int
    tmp_bytes: int
    num_tmp_files: int
    num_open_files: int


class TerminalFields(TypedDict):
    """Size of a terminal, field by field as in sandbox.execution.Terminal."""

    columns: int
    rows: int


class PodFields(TypedDict):
    """Properties of a pod that a program or session asks for."""

    limits: LimitFields
    network: str
    """A value of sandbox.execution.Network."""
    root: str
    """Name of the root file system; "" for none."""
    folders: list[str]
    """Paths of the lane's folders that it sees; with a root file system it sees none."""
    terminal: TerminalFields | None
    """Terminal of its output; None for pipes."""


class FunctionFields(TypedDict):
    """A function of the host, field by field as in sandbox.host_functions.HostFunction."""

    name: str
    description: str
    parameters: dict[str, Any]


class CallLimitFields(TypedDict):
    """Limits of the calls of one cell, field by field as in sandbox.host_functions.CallLimits."""

    max_calls: int
    reply_seconds: float


class LaneSettings(TypedDict):
    """Settings of a lane, which it gets at its start."""

    has_proc: bool
    """Whether the machine lets a pod mount its own /proc."""
    shares_network: bool
    """Whether all pods without a network share one network namespace, whose interfaces are down; otherwise each has its
    own."""
    zygotes: dict[str, ZygotePlan]
    """Plan of each zygote, by its name."""
    session_zygote: str
    """Name of the zygote that forks the interpreters of sessions."""
    session_cpu_seconds: int
    """CPU seconds that each process of a session may use in its whole life."""
    num_foreground: int
    """Number of programs that may compute at once in the foreground."""
    max_forks: int
    """Number of processes that a zygote forks before a fresh zygote replaces it."""
    memory_bytes: int
    """Memory for all programs and sessions of the lane together."""
    user_ids: UserIdFields
    """User ids of programs."""
    folders: list[str]
    """Paths of the folders that a program sees only if it asks for them."""
    num_prewarmed: int
    """Number of interpreters that are kept ready before sessions ask for them."""
    first_pod: PodFields
    """Pod of these interpreters, until sessions ask for a different one."""


class LaneDescriptors(TypedDict):
    """Descriptors that a lane inherits beside its channel."""

    outer_proc: int | None
    """The service's /proc, on a machine where pods cannot mount one."""
    user_range: int | None
    """User namespace that the lane has joined; None where programs share the lane's user id."""
    egress: int | None
    """Socket to the proxy, which takes listening sockets of pods; None where there is no proxy."""
    groups: tuple[int, int, int] | None
    """Version of the control groups, and descriptors of the folders for memory and for processes; None where there are
    no control groups."""


class LaneProgram(PodFields):
    """A program to compile, if its language is compiled, and to run."""

    kind: ProgramKind
    zygote: str
    file: str
    """Name of the file that holds `code` in the working directory."""
    code: str
    argv: list[str]
    """For kind "python" the arguments, otherwise the whole command."""
    compile: list[str] | None
    """Command of the compiler; None where nothing is compiled."""
    compile_limits: LimitFields
    stdin: str
    files: EncodedFiles
    fetch: list[str]
    """Names of files to send back after the end."""
    max_file_bytes: int
    """Maximum size of all fetched files together."""
    environment: dict[str, str]
    folder: str
    """Folder below the working directory in which the program starts; empty for none."""


class RunRequest(TypedDict):
    """Run a program. The answer is RunAnswer or Refusal."""

    op: Literal["run"]
    program: LaneProgram
    streams: bool
    """Whether to send its output while it runs, as OutputAnswers."""


class CancelRequest(TypedDict):
    """End a program, whose RunRequest is then answered by a Refusal. This request has no answer of its own."""

    op: Literal["cancel"]
    target: int
    """Number of its RunRequest."""


class MoreRequest(TypedDict):
    """Ask for the next OutputAnswer; the first one is sent unasked. This request has no answer of its own."""

    op: Literal["more"]
    target: int
    """Number of its RunRequest or CellRequest."""


class TypeRequest(TypedDict):
    """Type into the terminal of a program. This request has no answer."""

    op: Literal["type"]
    target: int
    """Number of its RunRequest."""
    text: str


class PingRequest(TypedDict):
    """Ask whether the lane is alive. The answer is Done."""

    op: Literal["ping"]


class OpenRequest(PodFields):
    """Start a session. The answer is Opened or Refusal."""

    op: Literal["open"]
    session: str
    environment: dict[str, str]
    folder: str
    """Folder below the working directory in which the interpreter starts; empty for none."""
    functions: list[FunctionFields]
    """Functions of the host that its cells may call."""


class CellRequest(TypedDict):
    """Run a cell in a session. The answer is CellAnswer or Refusal, after a CallAnswer for each call."""

    op: Literal["cell"]
    session: str
    epoch: int
    code: str
    wall_seconds: float
    streams: bool
    """Whether to send its output while it runs, as OutputAnswers."""
    calls: CallLimitFields | None
    """Limits of its calls of the host's functions; None if it may make no calls."""


class ReplyRequest(TypedDict):
    """Reply to a call of the cell that runs in a session. This request has no answer, and may come too late."""

    op: Literal["reply"]
    session: str
    call: int
    """Number of the CallAnswer."""
    value: str | None
    """Return value of the call as JSON; None for an error."""
    error: str | None
    """Text of the exception that the call raises; None for a value."""


class ForkRequest(TypedDict):
    """Copy a session's interpreter. The answer is Done or Refusal."""

    op: Literal["fork"]
    session: str
    epoch: int
    branch: str
    """Id of the new session."""


class FilesRequest(TypedDict):
    """Write files into a session's working directory, then read others. The answer is FilesAnswer or Refusal."""

    op: Literal["files"]
    session: str
    epoch: int
    files: EncodedFiles
    fetch: list[str]
    max_file_bytes: int
    """Maximum size of all fetched files together."""


class AbandonRequest(TypedDict):
    """End the running cell, and its interpreter with it. Nobody reads the answer."""

    op: Literal["abandon"]
    session: str


class CloseRequest(TypedDict):
    """End a session. Nobody reads the answer."""

    op: Literal["close"]
    session: str


UseRequest: TypeAlias = CellRequest | ForkRequest | FilesRequest
"""Requests that need the session's interpreter, idle and of the right epoch."""
SessionRequest: TypeAlias = OpenRequest | UseRequest | ReplyRequest | AbandonRequest | CloseRequest
LaneRequest: TypeAlias = RunRequest | CancelRequest | MoreRequest | TypeRequest | PingRequest | SessionRequest


class RequestFrame(TypedDict):
    """One message from the service to a lane."""

    number: int
    """Number of the request, counted from 1 in each lane."""
    request: LaneRequest


class OutputFields(TypedDict):
    """Output of a process; sandbox.execution.Result has the same fields."""

    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool


class ProcessFields(OutputFields):
    """How a process ended, according to the kernel, and its output."""

    status: str
    """A value of sandbox.execution.Status."""
    exit_code: int | None
    signal: int | None
    setup_seconds: float
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    had_no_core: bool


class FetchedFields(TypedDict):
    """Files that were fetched, and the reason for each that was not."""

    files: EncodedFiles
    file_errors: dict[str, str]


class RunAnswer(ProcessFields, FetchedFields):
    """The result of a program."""

    kind: Literal["run"]
    compile_output: str
    queue_seconds: float
    """Time that the program waited in the lane."""


class SessionFields(TypedDict):
    """Interpreter that a cell ran in, field by field as in sandbox.execution.SessionState."""

    id: str
    epoch: int
    num_cells: int


class CellAnswer(OutputFields):
    """The result of a cell."""

    kind: Literal["cell"]
    status: str
    """A value of sandbox.execution.Status."""
    value: str | None
    error: str | None
    wall_seconds: float
    had_no_core: bool
    session: SessionFields


class FilesAnswer(FetchedFields):
    """Files of a session."""

    kind: Literal["files"]


class OutputAnswer(TypedDict):
    """Output of a program or cell since the previous OutputAnswer; the last answer of its request still follows."""

    kind: Literal["output"]
    stdout: str
    """Bytes in base64."""
    stderr: str


class CallAnswer(TypedDict):
    """A running cell calls a function of the host; the cell waits until a ReplyRequest comes."""

    kind: Literal["call"]
    call: int
    """Number of the call, unique in the lane."""
    name: str
    """Name of one of the session's functions."""
    arguments: str
    """Arguments as the cell sent them: JSON, unless the user's code forged the call."""


class Ready(TypedDict):
    """A lane whose zygotes are ready to fork."""

    kind: Literal["ready"]
    shows_places: str | None
    """Reason why programs can find out where the folders that they see lie on the machine; None if they cannot."""


class Done(TypedDict):
    """The request was served, and has no result."""

    kind: Literal["done"]


class Opened(TypedDict):
    """The session has started."""

    kind: Literal["opened"]
    is_prewarmed: bool
    """Whether its interpreter was made before the session was asked for."""


class Refusal(TypedDict):
    """The request was not served."""

    kind: Literal["failed", "lost", "refused"]
    """failed: the system is at fault. lost: the session, or its interpreter of that epoch, is gone. refused: the caller
    is at fault."""
    reason: str


LaneAnswer: TypeAlias = (
    RunAnswer | CellAnswer | FilesAnswer | OutputAnswer | CallAnswer | Ready | Opened | Done | Refusal
)


class AnswerFrame(TypedDict):
    """One message from a lane to the service."""

    number: int
    """Number of the request, or frames.READY_NUMBER."""
    answer: LaneAnswer
