"""Program -> Result through one bubblewrap per program: slow, nothing shared; tests compare lanes with it.

It is slower than a zygote by the time to start an interpreter, and differs in two points that bubblewrap cannot
change. 127.0.0.1 is up in every program's network namespace. The number of files cannot be limited: files count as
memory, and more than `limits.num_tmp_files` of them end the program with MEMORY_LIMIT.
"""

import asyncio
import contextlib
import marshal
import os
import resource
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from verl_pivot.errors import SandboxError, SandboxRequestError
from verl_pivot.sandbox.bubblewrap.command_line import LIBRARY, BwrapCommand, DataFile, exec_command, find_bwrap
from verl_pivot.sandbox.bubblewrap.group_tree import GroupTree, groups_of_service, make_groups
from verl_pivot.sandbox.bubblewrap.probe import Tier, probe, require_tier, warn
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.bubblewrap.run import BwrapRun, StepEnd
from verl_pivot.sandbox.bubblewrap.shim_plan import ShimPlan, ShimStep
from verl_pivot.sandbox.execution import (
    MAX_FILE_BYTES,
    Limits,
    Network,
    OnOutput,
    Output,
    Program,
    Result,
    Status,
    Terminal,
    Timing,
)
from verl_pivot.sandbox.host_functions import HostFunction, PassedCalls
from verl_pivot.sandbox.lane.answer_fields import is_cpu_limit
from verl_pivot.sandbox.lane.confinement import NUM_SIGNALS, core_limit
from verl_pivot.sandbox.lane.control_groups import GroupPool, PodGroup, group_bytes
from verl_pivot.sandbox.lane.egress import ADDRESS, NUM_WAITING
from verl_pivot.sandbox.lane.fd_passing import sealed_memory_file
from verl_pivot.sandbox.lane.output_feed import PAUSE_SECONDS, PIECE_BYTES
from verl_pivot.sandbox.lane.seccomp import filter_bytes
from verl_pivot.sandbox.service.backend import BackendSettings
from verl_pivot.sandbox.service.egress import PROXY_ENDED, Egress, proxy_variables
from verl_pivot.sandbox.service.languages import Language, LanguageTable, load_languages
from verl_pivot.sandbox.service.program_files import program_files, utf8_bytes

_SHIM = Path(__file__).parents[1] / "bubblewrap" / "shim.py"
_NUM_SHIMS = 1
"""Processes of a sandbox beside those of the program: its shim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """Properties of this machine, found at the start."""

    bwrap: Path
    version: tuple[int, int, int]
    has_proc: bool
    python: PythonView
    languages: LanguageTable
    groups: GroupPool | None
    """Control groups for programs; None where the machine gives none."""


class BwrapExecBackend:
    """The backend with one bubblewrap per program; it has no sessions.

    The thread that runs it must outlive its programs, which end with that thread (--die-with-parent).
    """

    def __init__(self, settings: BackendSettings) -> None:
        self.tier = ""
        self.num_slots = settings.num_slots or os.cpu_count() or 1
        self._settings = settings
        self._egress = Egress(
            settings.egress, num_pods=self.num_slots, reaches_own_machine=settings.egress_reaches_own_machine
        )
        self._slots = asyncio.Semaphore(self.num_slots)
        self._running: set[BwrapRun] = set()
        self._found: _Machine | None = None
        self._tree: GroupTree | None = None
        self._opened = contextlib.ExitStack()
        """Folders of the control groups."""

    async def start(self) -> None:
        """Find out what this machine offers.

        Raises:
            ConfigError: If its tier is below `min_tier`, or the languages cannot be read.
        """
        resource.setrlimit(resource.RLIMIT_CORE, core_limit())  # programs inherit it, and may not set it
        python = PythonView.of()
        tree = groups_of_service() or make_groups()
        found = await asyncio.to_thread(probe, python, has_groups=tree is not None)
        require_tier(found, self._settings.min_tier)
        self._tree = None if tree is None else tree.below("programs")
        languages = load_languages(self._settings.languages_file, python=python)
        self._found = _Machine(
            bwrap=find_bwrap(),
            version=found.version,
            has_proc=found.tier is not Tier.T3,
            python=python,
            languages=languages,
            groups=None if self._tree is None else GroupPool(self._opened.enter_context(self._tree.make().opened())),
        )
        await self._egress.start()
        warn(found)
        self.tier = found.tier

    @property
    def languages(self) -> LanguageTable:
        """Languages that can run here, and why others cannot."""
        return self._machine.languages

    @property
    def _machine(self) -> "_Machine":
        if self._found is None:
            raise SandboxError("the backend is not running: it was stopped, or never started")
        return self._found

    async def run(self, program: Program, on_output: OnOutput | None = None) -> Result:
        """Run one program.

        Args:
            program: Program to run.
            on_output: Receiver of its output while it runs; None if nobody reads it before the end.

        Raises:
            SandboxRequestError: If its language is not available.
            SandboxError: If bubblewrap or the shim failed.
        """
        if program.root:
            raise SandboxRequestError("backend bwrap_exec does not support root file systems: use the backend zygote")
        if program.terminal is not None:
            raise SandboxRequestError("backend bwrap_exec does not support terminals: use the backend zygote")
        language = self._machine.languages.get(program.language)
        self._egress.check(program.network)
        async with self._slots:
            ticket = self._egress.ticket(program.network)
            with _lent(self._machine.groups, program, language) as group:
                result = await self._run(program, language, group, on_output)
        if not self._egress.is_valid(ticket):
            raise SandboxError(PROXY_ENDED)
        return result

    def type_in(self, on_output: OnOutput, text: str) -> None:
        raise SandboxRequestError("backend bwrap_exec does not support terminals: use the backend zygote")

    async def open_session(
        self,
        session_id: str,
        *,
        limits: Limits,
        network: Network,
        root: str,
        environment: dict[str, str],
        folder: str,
        terminal: Terminal | None,
        functions: tuple[HostFunction, ...],
    ) -> bool:
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
        on_output: OnOutput | None = None,
        calls: PassedCalls | None = None,
    ) -> Result:
        raise _no_sessions()

    async def fork_session(self, session_id: str, branch_id: str, *, epoch: int) -> None:
        raise _no_sessions()

    async def close_session(self, session_id: str) -> None:
        raise _no_sessions()

    async def stop(self) -> None:
        """End every program; calls that wait for a program or a slot raise SandboxError."""
        self._found = None
        for run in self._running:
            run.kill()
        await asyncio.gather(*(run.gone() for run in self._running))
        self._opened.close()
        await self._egress.stop()
        if self._tree is not None:
            await self._tree.removed()

    async def _run(
        self, program: Program, language: Language, group: PodGroup | None, on_output: OnOutput | None
    ) -> Result:
        start = time.monotonic()
        run = self._begin(program, language, group)
        self._running.add(run)
        files: dict[str, bytes] = {}
        file_errors: dict[str, str] = {}
        feed = None if on_output is None else asyncio.create_task(_feed(run, program.limits.output_bytes, on_output))
        try:
            await run.ready()
            setup_seconds = time.monotonic() - start
            limits = language.compile_limits_of(program) if language.compile else program.limits
            ended = await run.step(limits, memory_bytes=_memory_bytes(limits, language))
            is_compiling = language.compile is not None
            if is_compiling and ended.reason is None and ended.wait_status == 0:
                is_compiling, limits = False, program.limits
                ended = await run.step(limits, memory_bytes=_memory_bytes(limits, language))
            if not is_compiling and ended.reason is None:
                files, file_errors = await run.files(program.fetch)
        finally:
            if feed is not None:
                feed.cancel()
                await asyncio.wait([feed])
            await run.end()
            self._running.discard(run)
        if ended.exec_error and (is_compiling or language.compile is None):
            raise SandboxError(f"language {language.name!r} cannot be started: {ended.exec_error}")
        status = _compile_status(ended, limits) if is_compiling else _status(ended, limits, run)
        result = _result(run, ended, status, program.limits.output_bytes)
        timing = replace(result.timing, setup_seconds=setup_seconds)
        return replace(result, files=files, file_errors=file_errors, timing=timing, tier=str(self.tier))

    def _begin(self, program: Program, language: Language, group: PodGroup | None) -> BwrapRun:
        """Start bubblewrap, which alone keeps the descriptors that are made here."""
        plan_fd = sealed_memory_file(_plan(program, language))
        stdin_fd = sealed_memory_file(utf8_bytes(program.stdin))
        try:
            return BwrapRun(
                lambda *fds: self._command(program, language, (plan_fd, *fds)),
                stdin_fd=stdin_fd,
                keep_bytes=program.limits.output_bytes,
                group=group,
            )
        finally:
            os.close(plan_fd)
            os.close(stdin_fd)

    def _command(self, program: Program, language: Language, fds: tuple[int, ...]) -> BwrapCommand:
        machine = self._machine
        if program.network is Network.PROXY and self._egress.fd is not None:
            fds = (*fds, self._egress.fd)
        return exec_command(
            machine.python,
            (machine.python.executable, "-I", "-S", "-B", f"{LIBRARY}/{_SHIM.name}", *map(str, fds)),
            bwrap=machine.bwrap,
            version=machine.version,
            tmp_bytes=program.limits.tmp_bytes,
            seccomp=filter_bytes(has_devices=bool(language.devices)),
            files=_tmp_files(program, language),
            keep_fds=fds,
            mount_proc=machine.has_proc,
            as_pid_1=True,
            library=_SHIM,
            folders={folder.place: folder.source for folder in language.folders},
            devices=language.devices,
        )


async def _feed(run: BwrapRun, keep_bytes: int, on_output: OnOutput) -> None:
    """Pass the output on while the program runs; the last part of it is only in the result."""
    num_sent = [0, 0]
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        drains = zip((run.stdout, run.stderr), num_sent, strict=True)
        pieces = [drain.kept(start, min(start + PIECE_BYTES, keep_bytes)) for drain, start in drains]
        if any(pieces):
            num_sent = [start + len(piece) for start, piece in zip(num_sent, pieces, strict=True)]
            await on_output(Output(stdout=pieces[0], stderr=pieces[1]))


def _result(run: BwrapRun, ended: StepEnd, status: Status, keep_bytes: int) -> Result:
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
        had_no_core=ended.had_no_core and status in (Status.TIMEOUT, Status.COMPILE_TIMEOUT),
    )


def _tmp_files(program: Program, language: Language) -> list[DataFile]:
    """Files to write before the start: the code, and the files of the program."""
    contents = program_files(program, language)
    return [DataFile(destination=b"/tmp/" + utf8_bytes(name), content=content) for name, content in contents.items()]


def _plan(program: Program, language: Language) -> bytes:
    """Plan for the shim, encoded by marshal: the shim, which runs on the same Python, decodes it without an import."""
    compile_step = None
    if language.compile is not None:
        compile_step = _step(language.compile, language.compile_limits_of(program), language)
    plan = ShimPlan(
        environment={
            name.encode(): utf8_bytes(value)
            for name, value in {
                **language.environment,
                **proxy_variables(program.network),
                **program.environment,
            }.items()
        },
        proxy=(*ADDRESS, NUM_WAITING) if program.network is Network.PROXY else None,
        folder=utf8_bytes(program.folder),
        compile=compile_step,
        run=_step((*language.run_in(program.folder), *program.args), program.limits, language),
        fetch=[utf8_bytes(name) for name in program.fetch],
        max_fetch_bytes=MAX_FILE_BYTES,
    )
    return marshal.dumps(dict(plan))


def _step(command: Iterable[str], limits: Limits, language: Language) -> ShimStep:
    return ShimStep(argv=[utf8_bytes(word) for word in command], limits=_rlimits(limits, language))


def _rlimits(limits: Limits, language: Language) -> dict[str, int]:
    return {
        "RLIMIT_CPU": limits.cpu_seconds,
        "RLIMIT_DATA": _memory_bytes(limits, language),
        "RLIMIT_NPROC": limits.num_processes + language.overhead.num_processes + _NUM_SHIMS,
        "RLIMIT_NOFILE": limits.num_open_files + language.overhead.num_open_files,
        "RLIMIT_FSIZE": limits.tmp_bytes,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_SIGPENDING": NUM_SIGNALS,
    }


def _memory_bytes(limits: Limits, language: Language) -> int:
    return limits.memory_bytes + language.overhead.memory_bytes


@contextlib.contextmanager
def _lent(groups: GroupPool | None, program: Program, language: Language) -> Iterator[PodGroup | None]:
    """A control group for the program and its compiler; None if the machine has no control groups."""
    if groups is None:
        yield None
        return
    steps = [program.limits, *([language.compile_limits] if language.compile else [])]
    memory_bytes = max(_memory_bytes(limits, language) for limits in steps)
    num_processes = max(limits.num_processes for limits in steps) + language.overhead.num_processes
    limit = group_bytes(memory_bytes, program.limits.tmp_bytes, shared_bytes=0)
    try:
        group = groups.take(memory_bytes=limit, num_processes=num_processes)
    except OSError as error:
        raise SandboxError(f"cannot create a control group: {error}") from error
    try:
        yield group
    finally:
        groups.give_back(group)


def _status(ended: StepEnd, limits: Limits, run: BwrapRun) -> Status:
    """Status of a program: the limit that it was ended for, or what the kernel says of its end."""
    if ended.reason is not None:
        return ended.reason
    if run.stdout.exceeded or run.stderr.exceeded:
        return Status.OUTPUT_LIMIT
    if ended.wait_status == 0:
        return Status.OK
    number = ended.wait_status & 0x7F
    if is_cpu_limit(number, ended.cpu_seconds or 0.0, limits.cpu_seconds):
        return Status.CPU_LIMIT
    return Status.SIGNALED if number else Status.ERROR


def _compile_status(ended: StepEnd, limits: Limits) -> Status:
    if ended.reason is not None and ended.reason is not Status.TIMEOUT:
        return ended.reason
    cpu_is_spent = (ended.cpu_seconds or 0.0) >= limits.cpu_seconds
    return Status.COMPILE_TIMEOUT if ended.reason is Status.TIMEOUT or cpu_is_spent else Status.COMPILE_ERROR


def _no_sessions() -> SandboxRequestError:
    return SandboxRequestError("backend bwrap_exec does not support sessions: use the backend zygote")
