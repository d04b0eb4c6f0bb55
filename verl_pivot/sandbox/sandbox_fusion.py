"""SandboxFusion's `POST /run_code`: Program <-> its body, Result <-> its answer, for our client and for our service.

Source: https://bytedance.github.io/SandboxFusion/docs/api/run-code-run-code-post.
"""

from enum import StrEnum

import msgspec

from verl_pivot.errors import SandboxRequestError, UnsupportedLanguageError
from verl_pivot.sandbox.execution import MIB, Limits, Program, Result, Status, Timing
from verl_pivot.sandbox.pool_answers import PoolFailure, cut_output

PATH = "/run_code"
COMPILE_SECONDS = 10.0
"""Default of the protocol for `compile_timeout`."""
LANGUAGES = frozenset({
    "D_ut", "R", "bash", "cpp", "csharp", "cuda", "go", "go_test", "java", "jest", "julia", "junit", "kotlin_script",
    "lean", "lua", "nodejs", "perl", "php", "pytest", "python", "python_gpu", "racket", "ruby", "rust", "scala", "sql",
    "swift", "typescript", "verilog",
})  # fmt: skip
"""Languages of the protocol."""
_COMPILED = frozenset({"cpp", "go", "java", "junit", "rust"})
"""Languages for which a pool returns a `compile_result`."""
_THEIR_NAMES = {"javascript": "nodejs"}
"""{our name: SandboxFusion's name} of the languages whose names differ."""
_OUR_NAMES = {"nodejs": "javascript", "js": "javascript"}
_OUTPUT_BYTES = 1 * MIB
"""Bytes that a pool keeps of each stream."""
_SIGKILL = 9


class RunStatus(StrEnum):
    """How a request ended."""

    SUCCESS = "Success"
    FAILED = "Failed"
    SANDBOX_ERROR = "SandboxError"


class CommandStatus(StrEnum):
    """How the compiler or the program ended."""

    FINISHED = "Finished"
    ERROR = "Error"
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"


class RunCodeBody(msgspec.Struct, kw_only=True, rename={"memory_limit_mib": "memory_limit_MB"}):
    """Body of the request."""

    code: str
    language: str
    compile_timeout: float = COMPILE_SECONDS
    run_timeout: float = 10.0
    memory_limit_mib: int = -1
    """Limit on memory in MiB; 0 or less for the default."""
    stdin: str | None = None
    files: dict[str, bytes | None] = {}
    """{name: content, in base64}; a name without content is left out."""
    fetch_files: list[str] = []
    args: list[str] = []


class CommandResult(msgspec.Struct, kw_only=True):
    """How the compiler or the program ended, and its output."""

    status: CommandStatus
    execution_time: float | None = None
    return_code: int | None = None
    """Exit code; negative for the signal that ended the command."""
    stdout: str | None = None
    stderr: str | None = None


class RunCodeAnswer(msgspec.Struct, kw_only=True):
    """Answer to the request."""

    status: RunStatus
    message: str = ""
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, bytes] = {}


_decode_answer = msgspec.json.Decoder(RunCodeAnswer).decode


def run_code_body(program: Program) -> RunCodeBody:
    """Request for a program; of its limits, only those on time and memory are sent.

    Raises:
        UnsupportedLanguageError: If the protocol has no such language.
        SandboxRequestError: If the program has environment variables, or a folder to start in.
    """
    language = _THEIR_NAMES.get(program.language, program.language)
    if language not in LANGUAGES:
        raise UnsupportedLanguageError(
            f"SandboxFusion does not support language {program.language!r}: use one of {', '.join(sorted(LANGUAGES))}"
        )
    if program.environment or program.folder:
        raise SandboxRequestError(
            "SandboxFusion supports neither environment variables nor a folder to start in: use a service of "
            "`verl-pivot sandbox serve`"
        )
    return RunCodeBody(
        code=program.code,
        language=language,
        compile_timeout=COMPILE_SECONDS if program.compile_seconds is None else program.compile_seconds,
        run_timeout=program.limits.wall_seconds,
        memory_limit_mib=max(1, program.limits.memory_bytes // MIB),
        stdin=program.stdin,
        files=dict(program.files),
        fetch_files=list(program.fetch),
        args=list(program.args),
    )


def read_run_code_answer(program: Program, text: bytes) -> Result:
    """Result of a program.

    Raises:
        PoolFailure: If the pool could not run the program, or the text is no answer of the protocol.
    """
    try:
        answer = _decode_answer(text)
    except (ValueError, RecursionError) as error:
        raise PoolFailure(f"the answer is not valid for SandboxFusion's /run_code: {error}") from error
    compiled, ran = answer.compile_result, answer.run_result
    ends = [each for each in (compiled, ran) if each is not None]
    if answer.status is RunStatus.SANDBOX_ERROR or any(end.status is CommandStatus.ERROR for end in ends):
        raise PoolFailure(f"SandboxError: {answer.message or 'without a message'}")
    compile_output = "" if compiled is None else (compiled.stdout or "") + (compiled.stderr or "")
    if compiled is not None and (compiled.status is not CommandStatus.FINISHED or compiled.return_code != 0):
        is_late = compiled.status is CommandStatus.TIME_LIMIT_EXCEEDED
        if not is_late and compiled.return_code is None:
            raise PoolFailure("its compile_result is finished but has no return_code")
        status = Status.COMPILE_TIMEOUT if is_late else Status.COMPILE_ERROR
        return Result(status=status, exit_code=compiled.return_code, compile_output=compile_output)
    if ran is None:
        raise PoolFailure("its answer has no run_result")
    return _result(program, answer, ran, compile_output)


def _result(program: Program, answer: RunCodeAnswer, ran: CommandResult, compile_output: str) -> Result:
    code = ran.return_code
    if ran.status is CommandStatus.TIME_LIMIT_EXCEEDED:
        status = Status.TIMEOUT
    elif code is None:
        raise PoolFailure("its run_result is finished but has no return_code")
    else:
        status = Status.SIGNALED if code < 0 else Status.ERROR if code else Status.OK
    by_itself = status in (Status.OK, Status.ERROR)
    missing = [name for name in program.fetch if name not in answer.files]
    return Result(
        status=status,
        exit_code=code if by_itself else None,
        signal=-code if status is Status.SIGNALED and code is not None else None,
        **cut_output(ran.stdout, ran.stderr, keep_bytes=min(program.limits.output_bytes, _OUTPUT_BYTES)),
        compile_output=compile_output,
        files={name: answer.files[name] for name in program.fetch if name in answer.files},
        file_errors=dict.fromkeys(missing, "the pool found no such file"),
        timing=Timing(wall_seconds=ran.execution_time or 0.0),
        tier="SandboxFusion",
        node=answer.executor_pod_name or "",
    )


def decode_run_code_body(text: bytes) -> tuple[RunCodeBody, Program]:
    """Request and its program, for the service.

    Raises:
        SandboxRequestError: If the text is no such request, or asks for something that is not allowed.
    """
    try:
        body = msgspec.json.decode(text, type=RunCodeBody)
    except (ValueError, RecursionError) as error:
        raise SandboxRequestError(f"the body is refused: {error}") from error
    memory_bytes = body.memory_limit_mib * MIB if body.memory_limit_mib > 0 else Limits().memory_bytes
    program = Program(
        code=body.code,
        language=_OUR_NAMES.get(body.language, body.language),
        stdin=body.stdin or "",
        args=tuple(body.args),
        files={name: content for name, content in body.files.items() if content is not None},
        fetch=tuple(body.fetch_files),
        limits=Limits(
            wall_seconds=body.run_timeout,
            cpu_seconds=600,  # the protocol limits wall time, not CPU time
            memory_bytes=memory_bytes,
            output_bytes=_OUTPUT_BYTES,
            num_processes=256,
            tmp_bytes=256 * MIB,
            num_open_files=1024,
        ),
        compile_seconds=body.compile_timeout,
    )
    return body, program


def run_code_answer(body: RunCodeBody, result: Result) -> RunCodeAnswer:
    """Answer to a request whose program came to a result."""
    if result.status in (Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT):
        is_late = result.status is Status.COMPILE_TIMEOUT
        return RunCodeAnswer(
            status=RunStatus.FAILED,
            compile_result=_command(result, is_late=is_late, stderr=result.compile_output),
            executor_pod_name=result.node,
        )
    compiled = None
    if body.language in _COMPILED:
        compiled = CommandResult(status=CommandStatus.FINISHED, return_code=0, stdout="", stderr=result.compile_output)
    is_late = result.status in (Status.TIMEOUT, Status.CPU_LIMIT)
    limit = result.status if result.status in (Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT) else ""
    return RunCodeAnswer(
        status=RunStatus.SUCCESS if result.status is Status.OK else RunStatus.FAILED,
        message=f"the program reached a limit: {limit}" if limit else "",
        compile_result=compiled,
        run_result=_command(result, is_late=is_late, stdout=result.stdout, stderr=result.stderr),
        executor_pod_name=result.node,
        files=dict(result.files),
    )


def _command(result: Result, *, is_late: bool, stdout: str = "", stderr: str = "") -> CommandResult:
    ended_by = -_SIGKILL if result.signal is None else -result.signal
    return CommandResult(
        status=CommandStatus.TIME_LIMIT_EXCEEDED if is_late else CommandStatus.FINISHED,
        execution_time=result.timing.wall_seconds,
        return_code=None if is_late else ended_by if result.exit_code is None else result.exit_code,
        stdout=stdout,
        stderr=stderr,
    )
