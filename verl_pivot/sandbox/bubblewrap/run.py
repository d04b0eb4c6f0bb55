"""Command of bubblewrap -> one sandbox from its start to its end: the shim's report, limits, output, files."""

import asyncio
import binascii
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_pivot.errors import SandboxError
from verl_pivot.sandbox.bubblewrap.command_line import BwrapCommand
from verl_pivot.sandbox.bubblewrap.drain import Drain
from verl_pivot.sandbox.bubblewrap.process_tree import be_ended_first, child_pids, num_tmp_files, usage_below
from verl_pivot.sandbox.execution import MAX_FILE_BYTES, MIB, Limits, Status
from verl_pivot.sandbox.lane.control_groups import CpuCounter, PodGroup, machine_ran_out
from verl_pivot.sandbox.lane.core_time import (
    LOOK_AGAIN_SECONDS,
    MANY_PROCESSES,
    Waiting,
    granted_seconds,
    lacked_core,
    look_at,
)
from verl_pivot.sandbox.lane.networks import buffer_bytes, num_sockets_of

START_SECONDS = 60.0
"""Seconds until bubblewrap and its shim must have started, or the shim answered; longer means a stuck machine."""
_WATCH_SECONDS = 0.05
"""Seconds between two looks at what a program uses."""
_REPORT_BYTES = 2 * MAX_FILE_BYTES
"""Maximum bytes of one line of the shim's report, which may hold a file in base64."""
_ERROR_BYTES = 2000
"""Bytes of stderr that an error message quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """How a step ended."""

    reason: Status | None = None
    """Limit for which the step was ended; None if it ended by itself."""
    had_no_core: bool = False
    """Whether it was ended for its wall limit for lack of a core."""
    wait_status: int = 0
    """Status as wait4 gives it."""
    exec_error: str = ""
    """Reason why the step's command could not be executed; "" if it was."""
    wall_seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


class BwrapRun:
    """One sandbox. Call `ready`, then `step` for each step of the plan, then `files`; and `end` in any case.

    The shim begins only when it reads a byte from the go pipe. The byte is written once there is a pidfd of the shim;
    if the sandbox is ended before that, the pipe is closed instead. Otherwise a bubblewrap that is killed after its
    fork, but before its child has asked for --die-with-parent, would leave the child behind.
    """

    def __init__(
        self,
        make_command: Callable[[int, int, int], BwrapCommand],
        *,
        stdin_fd: int,
        keep_bytes: int,
        group: PodGroup | None = None,
    ) -> None:
        """Start bubblewrap.

        Args:
            make_command: Makes the command from three descriptors: the shim's report, the compiler's output, and the
                read end of the go pipe.
            stdin_fd: Input of the program.
            keep_bytes: Bytes kept of each stream of output.
            group: Control group of its processes; None where the machine gives none.

        Raises:
            SandboxError: If bubblewrap cannot be started.
        """
        self.group = group
        with contextlib.ExitStack() as read_ends, contextlib.ExitStack() as write_ends:
            pipes = [_pipe(read_ends, write_ends) for _ in range(4)]
            (report, report_w), (compiler, compiler_w), (stdout, stdout_w), (stderr, stderr_w) = pipes
            go_read, self._go_fd = os.pipe()
            write_ends.callback(os.close, go_read)
            read_ends.callback(os.close, self._go_fd)
            command = make_command(report_w, compiler_w, go_read)
            try:
                self._process = subprocess.Popen(
                    command.argv,
                    env={},
                    pass_fds=command.pass_fds,
                    stdin=stdin_fd,
                    stdout=stdout_w,
                    stderr=stderr_w,
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"bubblewrap did not start: {error}") from error
            finally:
                command.close()
            read_ends.pop_all()
        self._reason: Status | None = None
        self._had_no_core = False
        self._gone = asyncio.Event()
        self._peak_memory_bytes = 0
        self._pidfds = [os.pidfd_open(self._process.pid)]
        self._shim_pid = 0
        """Process id of the shim, which is PID 1 of its namespace; 0, which has no children, until it is known."""
        self._report_fd = report
        self._report: asyncio.StreamReader | None = None
        bounds = {"keep_bytes": max(keep_bytes, _ERROR_BYTES), "max_bytes": max(1 * MIB, keep_bytes)}
        self.stdout, self.stderr, self.compiler = (
            Drain(fd, **bounds, on_excess=lambda: self.kill(Status.OUTPUT_LIMIT)) for fd in (stdout, stderr, compiler)
        )

    async def ready(self) -> None:
        """Wait until the shim runs, and let it begin.

        Raises:
            SandboxError: If the sandbox does not start.
        """
        self._report = asyncio.StreamReader(limit=_REPORT_BYTES)
        protocol = asyncio.StreamReaderProtocol(self._report)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(self._report_fd, "rb"))
        await self._expect("ready")
        for pid in child_pids(self._process.pid):  # one, or none where bubblewrap was killed
            with contextlib.suppress(ProcessLookupError):
                self._pidfds.append(os.pidfd_open(pid))
                self._shim_pid = pid
        if not self._shim_pid or self._go_fd < 0:
            raise self._broken("it was killed while it started")
        be_ended_first(self._shim_pid)
        if self.group is not None:
            self.group.admit(self._shim_pid)
        with contextlib.suppress(BrokenPipeError):  # a dead shim is noticed at the next line of its report
            os.write(self._go_fd, b"!")

    async def step(self, limits: Limits, *, memory_bytes: int) -> StepEnd:
        """Wait until the next step ends; a step that breaks a limit is ended together with the whole sandbox.

        Args:
            limits: Limits on time and files, which are watched from outside.
            memory_bytes: Maximum bytes of all processes together.

        Raises:
            SandboxError: If the shim broke.
        """
        if await self._expect("started") is None:
            return StepEnd(reason=self._reason)
        start = asyncio.get_running_loop().time()
        message, watch = asyncio.ensure_future(self._next()), asyncio.ensure_future(self._watch(limits, memory_bytes))
        try:
            await asyncio.wait((message, watch), return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            ended = await message
        finally:
            message.cancel()
            watch.cancel()
            await asyncio.wait((message, watch))
        if self.group is not None and self.group.has_run_out():
            self.kill(Status.MEMORY_LIMIT)
        elif ended is not None:
            end = _ended(ended, self._peak_memory_bytes)
            if end.wait_status & 0x7F == signal.SIGKILL and machine_ran_out(self.group, start):
                raise self._broken("the machine ran out of memory")
            return end
        if self._reason is None:
            raise self._broken("its PID 1 was killed")
        wall_seconds = asyncio.get_running_loop().time() - start
        return StepEnd(
            reason=self._reason,
            had_no_core=self._had_no_core,
            wall_seconds=wall_seconds,
            peak_memory_bytes=self._peak_memory_bytes or None,
        )

    async def files(self, names: Sequence[str]) -> tuple[dict[str, bytes], dict[str, str]]:
        """Read the fetched files from the report: {name: content}, and {name: reason} of the unreadable ones."""
        contents: dict[str, bytes] = {}
        errors: dict[str, str] = {}
        for name in names:
            line = await self._expect("content", "error")
            if line is None:
                break
            event, _, rest = line.partition(" ")
            if event == "content":
                contents[name] = binascii.a2b_base64(rest)
            else:
                errors[name] = rest
        return contents, errors

    def kill(self, reason: Status | None = None) -> None:
        """End all processes of the sandbox; the first reason that is given stays."""
        self._reason = self._reason or reason
        self._close_go_pipe()
        for pidfd in reversed(self._pidfds):  # the namespace's PID 1 first, which takes everything with it
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if self._process.returncode is None:
            kill_group(self._process.pid)

    async def gone(self) -> None:
        """Wait until `end` is done."""
        await self._gone.wait()

    async def end(self) -> None:
        """End all processes; returns when none is left and all output is read."""
        self.kill()
        try:
            for pidfd in self._pidfds:
                await _readable(pidfd)
            self._process.wait()
            for drain in (self.stdout, self.stderr, self.compiler):
                await drain.end()
        finally:
            for drain in (self.stdout, self.stderr, self.compiler):
                drain.close()
            for pidfd in self._pidfds:
                os.close(pidfd)
            self._close_report()
            self._gone.set()

    def _close_go_pipe(self) -> None:
        if self._go_fd >= 0:
            os.close(self._go_fd)
            self._go_fd = -1

    def _close_report(self) -> None:
        if self._report is None:
            os.close(self._report_fd)
        else:
            self._transport.close()

    async def _watch(self, limits: Limits, memory_bytes: int) -> None:
        """Watch a step; returns when it was ended because it used too much."""
        loop = asyncio.get_running_loop()
        start, waiting, has_many, missing = loop.time(), Waiting(), False, limits.wall_seconds
        counter = CpuCounter(self.group)
        while self._reason is None:
            await asyncio.sleep(min(_WATCH_SECONDS, missing))
            usage = usage_below(self._shim_pid, memory_limit_bytes=memory_bytes)
            self._peak_memory_bytes = max(self._peak_memory_bytes, usage.memory_bytes)
            # Memory in the buffers of sockets; a control group counts it by itself.
            buffers = 0 if self.group is not None else buffer_bytes(num_sockets_of(self._shim_pid))
            if usage.memory_bytes + buffers > memory_bytes or num_tmp_files(self._shim_pid) > limits.num_tmp_files:
                self.kill(Status.MEMORY_LIMIT)
                return
            elapsed = loop.time() - start
            has_many = has_many or len(usage.processes) > MANY_PROCESSES
            if not has_many:
                look_at(waiting, usage.processes, loop.time())
            waiting.note_counted(counter.used_seconds)
            waited = 0.0 if has_many else waiting.seconds(elapsed)
            granted = granted_seconds(waited, limits.wall_seconds)
            missing = limits.wall_seconds + granted - elapsed
            if missing > 0.001:
                continue
            missing = LOOK_AGAIN_SECONDS
            if has_many or not waiting.is_undecided:
                self._had_no_core = lacked_core(waited, waiting.used_seconds, limits.wall_seconds)
                self.kill(Status.TIMEOUT)

    async def _next(self) -> str | None:
        """Read a line of the report; None if the shim is gone."""
        if self._report is None:
            raise SandboxError("a step was requested before the sandbox was ready")
        line = await self._report.readline()
        return line[:-1].decode() if line.endswith(b"\n") else None

    async def _expect(self, *events: str) -> str | None:
        """Read the next line, which must begin with one of `events`; None if this side ended the sandbox."""
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await self._next()
                if line is None and self._reason is None:
                    self.kill()
                    await self.stderr.end()
                    raise self._broken(f"it ended before {events[0]!r}")
        except TimeoutError as error:
            raise SandboxError(f"the sandbox did not report {events[0]!r} within {START_SECONDS:.0f} s") from error
        if line is not None and line.partition(" ")[0] not in events:
            raise SandboxError(f"the sandbox reported {line[:100]!r} instead of {events[0]!r}")
        return line

    def _broken(self, what: str) -> SandboxError:
        stderr = self.stderr.text(_ERROR_BYTES).strip()
        return SandboxError(f"bubblewrap failed: {what}: {stderr}" if stderr else f"bubblewrap failed: {what}")


def kill_group(leader: int) -> None:
    """Kill a bubblewrap that leads its session, together with a child that it may be about to fork.

    If bubblewrap alone were killed, the child could stay behind: it waits for its ids to be mapped, and is not yet set
    to die with its parent.

    Args:
        leader: Process id of bubblewrap, which nobody has waited for yet.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _ended(line: str, watched_bytes: int) -> StepEnd:
    """Parse a line of the report, `ended STATUS WALL CPU MEMORY ERROR`; the error may be empty."""
    _, status, wall, cpu, memory, exec_error = line.split(" ", 5)
    return StepEnd(
        wait_status=int(status),
        exec_error=exec_error,
        wall_seconds=float(wall),
        cpu_seconds=float(cpu),
        peak_memory_bytes=max(int(memory), watched_bytes),
    )


def _pipe(read_ends: contextlib.ExitStack, write_ends: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    read_ends.callback(os.close, read)
    write_ends.callback(os.close, write)
    return read, write


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(fd)
