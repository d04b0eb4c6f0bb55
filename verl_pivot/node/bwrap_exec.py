"""Program -> Result, by one hardened bubblewrap for each: any language, no state, nothing shared. The oracle.

Slower than the zygotes by the start of an interpreter. Two differences that bubblewrap leaves: its private network
namespace always has 127.0.0.1 up, and it cannot bound the number of files, so that theirs counts as memory, and
more than `limits.num_tmp_files` ends the program with MEMORY_LIMIT.
"""

import asyncio
import marshal
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from verl_pivot.bubblewrap.bwrap import LIBRARY, BwrapCommand, DataFile, exec_command, find_bwrap
from verl_pivot.bubblewrap.bwrap_run import BwrapRun, Ended, Plan, Step
from verl_pivot.bubblewrap.memfd import sealed_memfd
from verl_pivot.bubblewrap.probe import Tier, probe, require_tier
from verl_pivot.bubblewrap.python_view import PythonView
from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.lane.seccomp import filter_bytes
from verl_pivot.node.backends import BackendSettings
from verl_pivot.node.languages import Language, Languages, load_languages
from verl_pivot.sandbox.execution import MAX_FILE_BYTES, Limits, Network, Program, Result, Status, Timing

_SHIM = Path(__file__).parents[1] / "bubblewrap" / "bwrap_shim.py"
_NUM_SHIMS = 1
"""Counts as a process of the sandbox too."""
_SIGXCPU, _SIGKILL = 24, 9
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What the start found."""

    bwrap: Path
    version: tuple[int, int, int]
    has_proc: bool
    python: PythonView
    languages: Languages


class BwrapExecBackend:
    """A backend without sessions. It must start its programs in a thread that outlives them (--die-with-parent)."""

    def __init__(self, settings: BackendSettings) -> None:
        self.tier = ""
        self.num_slots = settings.num_slots or os.cpu_count() or 1
        self._settings = settings
        self._slots = asyncio.Semaphore(self.num_slots)
        self._running: set[BwrapRun] = set()
        self._found: _Machine | None = None

    async def start(self) -> None:
        """Find out what this machine offers.

        Raises:
            ConfigError: If that is less than `min_tier`, or the languages cannot be read.
        """
        python = PythonView.of()
        found = await asyncio.to_thread(probe, python)
        require_tier(found, self._settings.min_tier)
        languages = load_languages(self._settings.languages_file, python=python)
        self._found = _Machine(
            bwrap=find_bwrap(),
            version=found.version,
            has_proc=found.tier is not Tier.T3,
            python=python,
            languages=languages,
        )
        self.tier = max(found.tier, Tier.T2)  # it puts nothing into a cgroup

    @property
    def languages(self) -> Languages:
        """Which can run, and why the others cannot."""
        return self._machine.languages

    @property
    def _machine(self) -> "_Machine":
        if self._found is None:
            raise SandboxError("the backend is not running")
        return self._found

    async def run(self, program: Program) -> Result:
        """Run one program.

        Raises:
            SandboxRequestError: If its language is not available.
            SandboxError: If bubblewrap or the shim failed.
        """
        language = self._machine.languages.get(program.language)
        async with self._slots:
            return await self._run(program, language)

    async def open_session(self, session_id: str, *, limits: Limits, network: Network) -> None:
        raise _no_sessions()

    async def run_cell(
        self,
        session_id: str,
        code: str,
        *,
        epoch: int,
        wall_seconds: float,
        files: dict[str, bytes],
        fetch: tuple[str, ...],
    ) -> Result:
        raise _no_sessions()

    async def fork_session(self, session_id: str, branch_id: str, *, epoch: int) -> None:
        raise _no_sessions()

    async def close_session(self, session_id: str) -> None:
        raise _no_sessions()

    async def stop(self) -> None:
        """End every program; those who wait for one, or for a slot, get a SandboxError."""
        self._found = None
        for run in self._running:
            run.kill()
        await asyncio.gather(*(run.gone() for run in self._running))

    async def _run(self, program: Program, language: Language) -> Result:
        start = time.monotonic()
        run = self._begin(program, language)
        self._running.add(run)
        files: dict[str, bytes] = {}
        file_errors: dict[str, str] = {}
        try:
            await run.ready()
            setup_seconds = time.monotonic() - start
            limits = language.compile_limits if language.compile else program.limits
            ended = await run.step(limits, memory_bytes=_memory_bytes(limits, language))
            compiling = language.compile is not None
            if compiling and ended.reason is None and ended.wait_status == 0:
                compiling, limits = False, program.limits
                ended = await run.step(limits, memory_bytes=_memory_bytes(limits, language))
            if not compiling and ended.reason is None:
                files, file_errors = await run.files(program.fetch)
        finally:
            await run.end()
            self._running.discard(run)
        if ended.exec_error and (compiling or language.compile is None):
            raise SandboxError(f"language {language.name!r} cannot be started: {ended.exec_error}")
        status = _compile_status(ended, limits) if compiling else _status(ended, limits, run)
        result = _result(run, ended, status, program.limits.output_bytes)
        timing = replace(result.timing, setup_seconds=setup_seconds)
        return replace(result, files=files, file_errors=file_errors, timing=timing, tier=str(self.tier))

    def _begin(self, program: Program, language: Language) -> BwrapRun:
        """Spawn bubblewrap. The descriptors made here are the child's alone afterwards."""
        plan_fd = sealed_memfd(_plan(program, language))
        stdin_fd = sealed_memfd(_bytes(program.stdin))
        try:
            return BwrapRun(
                lambda *fds: self._command(program, language, (plan_fd, *fds)),
                stdin_fd=stdin_fd,
                keep_bytes=program.limits.output_bytes,
            )
        finally:
            os.close(plan_fd)
            os.close(stdin_fd)

    def _command(self, program: Program, language: Language, fds: tuple[int, ...]) -> BwrapCommand:
        machine = self._machine
        return exec_command(
            machine.python,
            (machine.python.executable, "-I", "-S", "-B", f"{LIBRARY}/{_SHIM.name}", *map(str, fds)),
            bwrap=machine.bwrap,
            version=machine.version,
            tmp_bytes=program.limits.tmp_bytes,
            seccomp=filter_bytes(),
            files=_tmp_files(program, language),
            keep_fds=fds,
            mount_proc=machine.has_proc,
            as_pid_1=True,
            library=_SHIM,
        )


def _result(run: BwrapRun, ended: Ended, status: Status, keep_bytes: int) -> Result:
    by_itself = ended.reason is None
    signal_number = ended.wait_status & 0x7F
    return Result(
        status=status,
        exit_code=ended.wait_status >> 8 if by_itself and not signal_number else None,
        signal=signal_number if by_itself and signal_number else None,
        stdout=run.stdout.text(keep_bytes),
        stderr=run.stderr.text(keep_bytes),
        stdout_bytes=run.stdout.num_bytes,
        stderr_bytes=run.stderr.num_bytes,
        stdout_truncated=run.stdout.num_bytes > keep_bytes,
        stderr_truncated=run.stderr.num_bytes > keep_bytes,
        compile_output=run.compiler.text(keep_bytes),
        timing=Timing(wall_seconds=ended.wall_seconds, cpu_seconds=ended.cpu_seconds),
        peak_memory_bytes=ended.peak_memory_bytes,
    )


def _tmp_files(program: Program, language: Language) -> list[DataFile]:
    """The code and its files.

    Raises:
        SandboxRequestError: If two are in each other's way, or all do not fit.
    """
    contents = {language.file: _bytes(program.code), **program.files}
    if language.file in program.files:
        raise SandboxRequestError(f"files may not name {language.file!r}, which holds the code")
    for name in contents:
        for folder in PurePosixPath(name).parents:
            if str(folder) in contents:
                raise SandboxRequestError(f"files name {str(folder)!r} as a file and, with {name!r}, as a folder")
    needed_bytes = sum(-(-len(content) // _PAGE_BYTES) * _PAGE_BYTES for content in contents.values())
    if needed_bytes > program.limits.tmp_bytes:
        raise SandboxRequestError(
            f"code and files take {needed_bytes} bytes, more than limits.tmp_bytes of {program.limits.tmp_bytes}"
        )
    return [DataFile(destination=b"/tmp/" + _bytes(name), content=content) for name, content in contents.items()]


def _plan(program: Program, language: Language) -> bytes:
    """What the shim is to do. marshal, which takes no import: the same Python reads it."""
    compiling = None
    if language.compile is not None:
        compiling = _step(language.compile, language.compile_limits, language)
    plan = Plan(
        compile=compiling,
        run=_step((*language.run, *program.args), program.limits, language),
        fetch=[_bytes(name) for name in program.fetch],
        max_fetch_bytes=MAX_FILE_BYTES,
    )
    return marshal.dumps(dict(plan))


def _step(command: Iterable[str], limits: Limits, language: Language) -> Step:
    return Step(argv=[_bytes(word) for word in command], limits=_rlimits(limits, language))


def _bytes(text: str) -> bytes:
    """UTF-8. A lone surrogate, which has none, becomes what the program's own decoder will refuse."""
    return text.encode("utf-8", "surrogatepass")


def _rlimits(limits: Limits, language: Language) -> dict[str, int]:
    return {
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_DATA": _memory_bytes(limits, language),
        "RLIMIT_NPROC": limits.num_processes + language.overhead.num_processes + _NUM_SHIMS,
        "RLIMIT_NOFILE": limits.num_open_files + language.overhead.num_open_files,
        "RLIMIT_FSIZE": limits.tmp_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_MEMLOCK": 0,
    }


def _memory_bytes(limits: Limits, language: Language) -> int:
    return limits.memory_bytes + language.overhead.memory_bytes


def _status(ended: Ended, limits: Limits, run: BwrapRun) -> Status:
    """From what the kernel said, and from what we ended it for."""
    if ended.reason is not None:
        return ended.reason
    if run.stdout.exceeded or run.stderr.exceeded:
        return Status.OUTPUT_LIMIT
    if ended.wait_status == 0:
        return Status.OK
    number = ended.wait_status & 0x7F
    if number == _SIGXCPU or (number == _SIGKILL and (ended.cpu_seconds or 0.0) >= limits.cpu_seconds):
        return Status.CPU_LIMIT
    return Status.SIGNALED if number else Status.ERROR


def _compile_status(ended: Ended, limits: Limits) -> Status:
    if ended.reason is not None and ended.reason is not Status.TIMEOUT:
        return ended.reason
    cpu_is_spent = (ended.cpu_seconds or 0.0) >= limits.cpu_seconds
    return Status.COMPILE_TIMEOUT if ended.reason is Status.TIMEOUT or cpu_is_spent else Status.COMPILE_ERROR


def _no_sessions() -> SandboxRequestError:
    return SandboxRequestError("backend bwrap_exec has no sessions: use backend zygote")
