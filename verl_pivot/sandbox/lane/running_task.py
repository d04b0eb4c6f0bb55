"""A task that one process of a pod works on: its streams, its wall limit, and how it ended."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.control_groups import CpuCounter, machine_ran_out
from verl_pivot.sandbox.lane.core_time import LOOK_AGAIN_SECONDS, Waiting, family, granted_seconds, lacked_core, look_at
from verl_pivot.sandbox.lane.event_loop import EventLoop, Timer
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.procfs import has_ended
from verl_pivot.sandbox.lane.terminal import TerminalEnd
from verl_pivot.sandbox.lane.zygote_handle import ANSWER_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import LimitFields
    from verl_pivot.sandbox.lane.process_messages import LaneTask, ResourceLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a process ended."""

    failure: str | None = None
    """Why the system could not run the process; the other fields then mean nothing."""
    is_systems: bool = False
    """Whether the failure is one that no program in the pod can cause."""
    killed_by: str | None = None
    """Limit for which the process was killed; None if it ended by itself, even if that was shortly before the kill."""
    had_no_core: bool = False
    """Whether it was killed for its wall limit for lack of a core."""
    pod_ended_for: str | None = None
    """Limit for which the pod was ended, with the files in it, before the end of the process was known."""
    status: int = 0
    """Wait status, as wait(2) gives it."""
    wall_seconds: float = 0.0
    setup_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


class RunningTask:
    """Gives `process` its task, and calls `on_end` once, when the process has ended."""

    def __init__(
        self,
        loop: EventLoop,
        process: PodProcess,
        task: "LaneTask",
        *,
        wall_seconds: float,
        stdin: bytes,
        outputs: tuple[Capture, Capture],
        on_end: Callable[[Ending], None],
        end_pod: Callable[[], None],
        has_proc: bool,
        control: int | None = None,
        has_terminal: bool = False,
    ) -> None:
        """Give the task.

        Args:
            loop: The lane's event loop.
            process: Process of a pod.
            task: Work for it.
            wall_seconds: Seconds that it may take, besides those in which it waits for a core.
            stdin: The whole standard input, or what is typed into the terminal.
            outputs: Captures of stdout and stderr.
            on_end: Gets the ending.
            end_pod: Ends the pod with everything in it.
            has_proc: Whether /proc can be read.
            control: Descriptor for the answer of a FilesTask.
            has_terminal: Whether the process opens a terminal; the first capture then reads the terminal's output.
        """
        self._loop = loop
        self._wall_seconds = wall_seconds
        self._on_end = on_end
        self._end_pod = end_pod
        self._has_proc = has_proc
        self.process = process
        self.outputs = outputs
        self.pid: int | None = None
        self._asked_at = time.monotonic()
        self._forked_at = 0.0
        self._exited_at: float | None = None
        self._killed_by: str | None = None
        self._had_no_core = False
        self.has_many_processes = False
        """Whether it had so many processes that they wait for each other; no waiting time is granted then."""
        self.waiting = Waiting()
        """Time in which its processes were ready to run and had no core."""
        self._counter = CpuCounter(None)
        self._paused_at: float | None = None
        self._paused_seconds = 0.0
        self._timer = Timer(lambda: None)
        for output in outputs:
            loop.on_readable(output.read_end, partial(self._on_output, output))
        self.terminal = TerminalEnd(loop, outputs[0], partial(self._on_output, outputs[0])) if has_terminal else None
        if self.terminal is None:
            process.give(self, task, stdin=stdin, outputs=outputs, control=control)
        else:
            self.terminal.type_in(stdin)
            with self.terminal.far_end as far_end:
                process.give(self, task, stdin=b"", outputs=outputs, control=control, terminal=far_end.fileno())

    def kill(self, reason: str) -> None:
        """End the process and everything that it started; the first reason counts."""
        if self._exited_at is None and self._killed_by is None:
            self._killed_by = reason
            self._end_pod()
            self._timer.cancel()
            # The zygote must report the end in time.
            self._timer = self._loop.after(ANSWER_SECONDS, self.process.zygote.replace)

    def pause(self) -> None:
        """Stop counting time against the wall limit, as the processes are stopped."""
        self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Count time against the wall limit again."""
        if self._paused_at is not None:
            self._paused_seconds += time.monotonic() - self._paused_at
            self._paused_at = None

    def on_forked(self, pid: int) -> None:
        self.pid = pid
        self._forked_at = time.monotonic()
        self._counter = CpuCounter(self.process.pod.group)
        if self._killed_by is None:
            self._timer.cancel()
            self._timer = self._loop.after(self._wall_seconds, self._on_wall)

    def on_fork_failed(self, reason: str) -> None:
        is_failure = self._killed_by is None
        self._finish(Ending(killed_by=self._killed_by, failure=reason if is_failure else None, is_systems=is_failure))

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None:
        self._exited_at = time.monotonic()
        # The process's own output is in the pipes by now. Later output of processes that it started does not count.
        if self.terminal is not None:
            self.terminal.settle()
        floods = [output.drained_a_flood() for output in self.outputs]
        if self._killed_by is None and any(floods):
            self._killed_by = "output_limit"
        is_sure = self._killed_by == "output_limit"
        if self._killed_by is None and self.process.pod.has_run_out:
            self._killed_by, is_sure = "memory_limit", True
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        of_machine = None if self._killed_by else self._failure_of_machine(was_killed)
        self._finish(
            Ending(
                failure=None if self._killed_by else of_machine or self.process.failure(),
                is_systems=of_machine is not None,
                killed_by=self._killed_by if was_killed or is_sure else None,
                pod_ended_for=self._killed_by,
                had_no_core=self._had_no_core,
                status=status,
                wall_seconds=self._exited_at - self._forked_at,
                setup_seconds=self._forked_at - self._asked_at,
                cpu_seconds=cpu_seconds,
                peak_bytes=peak_bytes,
            )
        )

    def on_zygote_lost(self) -> None:
        self._end_pod()
        self._finish(Ending(failure="the zygote of the lane died", is_systems=True))

    def _on_wall(self) -> None:
        """Kill the process for its wall limit, unless time in which it waited for a core is still to be granted.

        `Ending.had_no_core` says whether the limit was reached for lack of a core.
        """
        if self._paused_at is not None:
            self.resume()
            self.pause()
        now = time.monotonic()
        elapsed = now - self._forked_at
        starved = self._starved_seconds(elapsed, now)
        waited = starved + self._paused_seconds
        granted = granted_seconds(waited, self._wall_seconds)
        missing = self._wall_seconds + granted - elapsed
        if missing > 0.001:
            self._timer = self._loop.after(missing, self._on_wall)
        elif self.waiting.is_undecided:
            self._timer = self._loop.after(LOOK_AGAIN_SECONDS, self._on_wall)
        elif self.pid is not None and has_ended(self.pid):  # in time; on a busy machine the report comes late
            self._timer = self._loop.after(ANSWER_SECONDS, self.process.zygote.replace)
        else:
            is_starved = lacked_core(starved, self.waiting.used_seconds, self._wall_seconds)
            self._had_no_core = is_starved or waited > granted
            self.kill("timeout")

    def _failure_of_machine(self, was_killed: bool) -> str | None:
        """Why the kernel killed the process, if the machine rather than the process is at fault."""
        is_robbed = was_killed and machine_ran_out(self.process.pod.group, self._forked_at)
        return "the machine ran out of memory" if is_robbed else None

    def _starved_seconds(self, elapsed_seconds: float, now: float) -> float:
        self.waiting.is_undecided = False
        if self.has_many_processes or not self._has_proc or self.pid is None:
            return 0.0
        look_at(self.waiting, family(self.pid, self.process.pod.pid), now)
        self.waiting.note_counted(self._counter.used_seconds)
        return self.waiting.seconds(elapsed_seconds - self._paused_seconds)

    def _on_output(self, output: Capture) -> None:
        output.read()
        if output.at_end:
            self._loop.forget(output.read_end)
        elif output.is_flood:
            self.kill("output_limit")

    def _finish(self, ending: Ending) -> None:
        self._timer.cancel()
        if self.terminal is not None:
            self.terminal.close()
        for output in self.outputs:
            self._loop.forget(output.read_end)
            os.close(output.read_end)
        self._on_end(ending)
        self.process.close()


def resource_limits(limits: "LimitFields") -> "ResourceLimits":
    """The part of the limits that the kernel enforces on each process; confinement.accept_limits sets it."""
    return {
        "cpu_seconds": limits["cpu_seconds"],
        "data_bytes": limits["memory_bytes"],
        "file_bytes": limits["tmp_bytes"],
        "num_processes": limits["num_processes"],
        "num_open_files": limits["num_open_files"],
    }
