"""Program -> LaneProgram, and a lane's RunAnswer or CellAnswer -> Result."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_pivot.sandbox.execution import (
    MAX_FILE_BYTES,
    Limits,
    Network,
    Program,
    Result,
    SessionState,
    Status,
    Terminal,
    Timing,
)
from verl_pivot.sandbox.host_functions import CallLimits, HostFunction
from verl_pivot.sandbox.lane.files import decode_files, encode_files
from verl_pivot.sandbox.lane.messages import (
    CallLimitFields,
    CellAnswer,
    FunctionFields,
    LaneProgram,
    LimitFields,
    OutputFields,
    RunAnswer,
    TerminalFields,
)
from verl_pivot.sandbox.service.egress import proxy_variables
from verl_pivot.sandbox.service.languages import Language

_KIND_OF_TERMINAL = "xterm-256color"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedFiles:
    """Files that were read after a cell."""

    contents: Mapping[str, bytes] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    """Name of each file that could not be read or written -> the reason."""


def limit_fields(limits: Limits) -> LimitFields:
    return {
        "wall_seconds": limits.wall_seconds,
        "cpu_seconds": limits.cpu_seconds,
        "memory_bytes": limits.memory_bytes,
        "output_bytes": limits.output_bytes,
        "num_processes": limits.num_processes,
        "tmp_bytes": limits.tmp_bytes,
        "num_tmp_files": limits.num_tmp_files,
        "num_open_files": limits.num_open_files,
    }


def function_fields(function: HostFunction) -> FunctionFields:
    return {"name": function.name, "description": function.description, "parameters": function.parameters}


def call_limit_fields(limits: CallLimits) -> CallLimitFields:
    return {"max_calls": limits.max_calls, "reply_seconds": limits.reply_seconds}


def terminal_fields(terminal: Terminal | None) -> TerminalFields | None:
    return None if terminal is None else {"columns": terminal.columns, "rows": terminal.rows}


def variables(environment: Mapping[str, str], terminal: Terminal | None, network: Network) -> dict[str, str]:
    """The caller's variables, with the kind of the terminal and the place of the proxy where there is one."""
    kind = {} if terminal is None else {"TERM": _KIND_OF_TERMINAL}
    return {**kind, **proxy_variables(network), **environment}


def lane_program(program: Program, language: Language, zygote: str) -> LaneProgram:
    """A program for a lane, with the overhead of its language added to its limits.

    Args:
        program: Program to run.
        language: Language of the program.
        zygote: Name of the zygote to fork it from.
    """
    is_python = language.zygote is not None and not program.root  # a root has a Python of its own
    overhead = language.overhead
    limits = limit_fields(program.limits)
    limits["memory_bytes"] += overhead.memory_bytes
    limits["num_processes"] += overhead.num_processes
    limits["num_open_files"] += overhead.num_open_files
    return {
        "kind": "python" if is_python else "exec",
        "zygote": zygote,
        "file": language.file,
        "code": program.code,
        "argv": [*(() if is_python else language.run_in(program.folder)), *program.args],
        "compile": None if language.compile is None else list(language.compile),
        "compile_limits": limit_fields(language.compile_limits_of(program)),
        "stdin": program.stdin,
        "files": encode_files(program.files),
        "fetch": list(program.fetch),
        "max_file_bytes": MAX_FILE_BYTES,
        "limits": limits,
        "network": program.network.value,
        "root": program.root,
        "folders": [*language.places],
        "environment": {
            **({} if program.root else language.environment),
            **variables(program.environment, program.terminal, program.network),
        },
        "folder": program.folder,
        "terminal": terminal_fields(program.terminal),
    }


def run_result(answer: RunAnswer, tier: str) -> Result:
    """The result of a program that ran under this tier."""
    return Result(
        status=Status(answer["status"]),
        exit_code=answer["exit_code"],
        signal=answer["signal"],
        **_output_fields(answer),
        compile_output=answer["compile_output"],
        files=decode_files(answer["files"]),
        file_errors=answer["file_errors"],
        timing=Timing(
            queue_seconds=answer["queue_seconds"],
            setup_seconds=answer["setup_seconds"],
            wall_seconds=answer["wall_seconds"],
            cpu_seconds=answer["cpu_seconds"],
        ),
        peak_memory_bytes=answer["peak_memory_bytes"],
        had_no_core=answer["had_no_core"],
        tier=tier,
    )


def cell_result(answer: CellAnswer, fetched: FetchedFiles, tier: str) -> Result:
    """The result of a cell that ran under this tier, with the files that were read after it."""
    return Result(
        status=Status(answer["status"]),
        **_output_fields(answer),
        value=answer["value"],
        error=answer["error"],
        files=fetched.contents,
        file_errors=fetched.errors,
        timing=Timing(wall_seconds=answer["wall_seconds"]),
        had_no_core=answer["had_no_core"],
        session=SessionState(**answer["session"]),
        tier=tier,
    )


def _output_fields(answer: OutputFields) -> OutputFields:
    """The fields of an answer that have the same name in Result."""
    return {
        "stdout": answer["stdout"],
        "stderr": answer["stderr"],
        "stdout_bytes": answer["stdout_bytes"],
        "stderr_bytes": answer["stderr_bytes"],
        "stdout_truncated": answer["stdout_truncated"],
        "stderr_truncated": answer["stderr_truncated"],
    }
