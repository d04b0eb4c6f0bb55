"""LaneProgram -> RunAnswer: compile a program if its language needs it, run it, read its files; in one pod."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from verl_pivot.sandbox.lane.answer_fields import process_fields
from verl_pivot.sandbox.lane.capture import Capture, take_output
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.files import decode_files
from verl_pivot.sandbox.lane.files_reply import FilesReply
from verl_pivot.sandbox.lane.output_feed import OutputFeed
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.pods import Pod, PodShape
from verl_pivot.sandbox.lane.running_task import Ending, RunningTask, resource_limits
from verl_pivot.sandbox.lane.terminal import MAX_TYPED_AHEAD, typed_input

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.messages import (
        FetchedFields,
        LaneProgram,
        LimitFields,
        ProcessFields,
        ProgramKind,
        Refusal,
        RunAnswer,
    )
    from verl_pivot.sandbox.lane.process_messages import FilesTask, LaneTask, ProgramTask

FILES_SECONDS = 10.0
"""Wall limit of a process that writes or reads files."""
_COMPILE_STATUS = {
    "timeout": "compile_timeout",
    "cpu_limit": "compile_timeout",
    "output_limit": "output_limit",
    "memory_limit": "memory_limit",
}
"""Status of the compiler's process -> status of the program; any other becomes compile_error."""


class Run:
    """One program, from its arrival to its answer."""

    def __init__(
        self,
        number: int,
        program: "LaneProgram",
        *,
        shape: PodShape,
        on_end: Callable[["Run", "RunAnswer | Refusal | None"], None],
        feed: OutputFeed | None = None,
    ) -> None:
        """Take a program that waits to be started.

        Args:
            number: Number of its request.
            program: What to run.
            shape: Shape of the pod that it needs.
            on_end: Gets the answer; None if the program was evicted, and can be started again.
            feed: Takes the output while the program runs; None if nobody reads it before the end.
        """
        self.number = number
        self.shape = shape
        self.program = program
        self.limits = program["limits"]
        self.pod: Pod | None = None
        self.task: RunningTask | None = None
        self.arrived_at = self._started_at = time.monotonic()
        self.cpu_seconds = 0.0
        self.unused_seconds = 0.0
        """Seconds of turns in the background that the program did not use."""
        self.used_bytes = 0
        self.groups: frozenset[int] = frozenset()
        """Process groups of the program."""
        self.pids: tuple[int, ...] = ()
        """Process ids of the program, as of the latest sample."""
        self.has_threads = False
        """Whether a process has several threads, which hides whether it sleeps."""
        self.is_crowd = False
        """Whether it has so many threads or processes that they would crowd out others."""
        self.may_be_forking = False
        """Whether a process may still be in a fork that began before the latest stop: no look since then found all of
        them stopped or asleep."""
        self.is_restarted = False
        """Whether this is its second start, with its whole memory limit set aside."""
        self.is_cancelled = False
        self._on_end = on_end
        self._feed = feed
        stdin = program["stdin"].encode("utf-8", "surrogatepass")
        types_end = program["terminal"] is not None and feed is None
        self._stdin = typed_input(stdin) if types_end else stdin

    def start(self, loop: EventLoop, process: PodProcess, *, has_proc: bool) -> None:
        """Begin in the new pod of `process`."""
        self.cpu_seconds, self.groups, self.pids, self.has_threads, self.is_crowd = 0.0, frozenset(), (), False, False
        self.unused_seconds, self.may_be_forking = 0.0, False
        self._started_at = time.monotonic()
        self._queue_seconds = self._started_at - self.arrived_at
        self._loop, self._zygote, self._has_proc = loop, process.zygote, has_proc
        self.pod = process.pod
        self._first: PodProcess | None = process
        if self.program["compile"]:
            self._start_task(
                self._program_task("exec", self.program["compile"], self.program["compile_limits"], has_files=True),
                self._on_compiled,
                self.program["compile_limits"],
            )
        else:
            self._start_program(compile_output="", has_files=True)

    @property
    def zygote(self) -> str:
        """Name of the zygote that forks the program."""
        return self.program["zygote"]

    @property
    def memory_bytes(self) -> int:
        return self.limits["memory_bytes"]

    @property
    def shim_pid(self) -> int:
        return self.pod.pid if self.pod is not None else 0

    @property
    def buffer_bytes(self) -> int:
        return self.pod.buffer_bytes if self.pod is not None else 0

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return self.task.pid if self.task is not None and self.pod is not None else None

    @property
    def shared_bytes(self) -> int:
        return self._zygote.resident_bytes

    @property
    def attained_seconds(self) -> float:
        """CPU seconds used, plus those of turns left unused; infinite for a crowd: its ended processes do not count."""
        return math.inf if self.is_crowd else self.cpu_seconds + self.unused_seconds

    def is_older(self, seconds: float) -> bool:
        return time.monotonic() - self._started_at > seconds

    def cancel(self) -> None:
        """End the program, whose answer is no longer wanted."""
        self.is_cancelled = True
        self.kill("cancelled")

    def kill(self, reason: str) -> None:
        """End the program for a limit; an "evicted" program makes room for others, and is started again later."""
        if self.task is not None:
            self.task.kill(reason)

    def type_in(self, data: bytes) -> None:
        """Type into the program's terminal, or keep the input until the program starts.

        Input is dropped if MAX_TYPED_AHEAD bytes wait already.
        """
        terminal = self.task.terminal if self.task is not None else None
        if terminal is not None:
            terminal.type_in(data, max_waiting=MAX_TYPED_AHEAD)
        elif len(self._stdin) < MAX_TYPED_AHEAD:
            self._stdin += data

    def pause(self) -> None:
        if self.task is not None:
            self.task.pause()

    def resume(self) -> None:
        if self.task is not None:
            self.task.resume()

    def set_frozen(self, *, is_frozen: bool) -> bool:
        """Stop all processes or let them go on; False where they have to be signalled instead."""
        return self.pod is not None and self.pod.set_frozen(is_frozen=is_frozen)

    def fail(self, reason: str) -> None:
        """Answer that the system could not run the program."""
        self._on_end(self, {"kind": "failed", "reason": reason})

    def _start_program(self, *, compile_output: str, has_files: bool) -> None:
        self._start_task(
            self._program_task(self.program["kind"], self.program["argv"], self.limits, has_files=has_files),
            partial(self._on_ran, compile_output),
            self.limits,
            stdin=self._stdin,
            has_terminal=self.program["terminal"] is not None,
        )
        if self._feed is not None and self.task is not None:
            self._feed.follow(self.task.outputs)

    def _program_task(
        self, kind: "ProgramKind", argv: list[str], limits: "LimitFields", *, has_files: bool
    ) -> "ProgramTask":
        """Task that runs the program or its compiler; the first task in the pod also writes the files."""
        code = self.program["code"].encode("utf-8", "surrogatepass")
        files = {**decode_files(self.program["files"]), self.program["file"]: code} if has_files else {}
        is_compiler = argv is self.program["compile"]
        return {
            "kind": kind,
            "argv": argv,
            "code": code,
            "files": files,
            "limits": resource_limits(limits),
            "place": {"environment": self.program["environment"], "folder": self.program["folder"]},
            "is_compiler": is_compiler,
            "terminal": None if is_compiler else self.program["terminal"],
        }

    def _start_task(
        self,
        task: "LaneTask",
        on_end: Callable[[Ending], None],
        limits: "LimitFields",
        *,
        stdin: bytes = b"",
        control: int | None = None,
        has_terminal: bool = False,
    ) -> None:
        assert self.pod is not None, "a task needs the pod, which has ended"
        process, self._first = self._first or PodProcess(self._loop, self._zygote, self.pod, is_first=False), None
        keep = limits["output_bytes"]
        self.task = RunningTask(
            self._loop,
            process,
            task,
            wall_seconds=limits["wall_seconds"],
            stdin=stdin,
            outputs=(Capture(keep), Capture(keep)),
            on_end=on_end,
            end_pod=self._end_pod,
            has_proc=self._has_proc,
            control=control,
            has_terminal=has_terminal,
        )

    def _end_pod(self) -> None:
        if self.pod is not None:
            self.pod.end()
            self.pod = None

    def _on_compiled(self, ending: Ending) -> None:
        ending = _without_pod(ending)
        if self._has_no_result(ending):
            return
        fields = self._process_fields(ending, self.program["compile_limits"])
        compile_output = fields["stdout"] + fields["stderr"]
        if fields["status"] == "ok":
            self._start_program(compile_output=compile_output, has_files=False)
        else:
            status = _COMPILE_STATUS.get(fields["status"], "compile_error")
            self._answer({**fields, "status": status, "stdout": "", "stderr": ""}, compile_output, _NOTHING_FETCHED)

    def _on_ran(self, compile_output: str, ending: Ending) -> None:
        names = self.program["fetch"]
        ending = _without_pod(ending) if names else ending
        if self._has_no_result(ending):
            return
        fields = self._process_fields(ending, self.limits)
        if not names or self.pod is None:
            errors = dict.fromkeys(names, "the program was killed, and its files are gone")
            self._answer(fields, compile_output, {"files": {}, "file_errors": errors})
            return
        limits: LimitFields = {**self.limits, "wall_seconds": FILES_SECONDS}
        task: FilesTask = {
            "kind": "files",
            "is_alone": True,
            "files": {},
            "fetch": names,
            "max_bytes": self.program["max_file_bytes"],
            "limits": resource_limits(limits),
        }
        reply = FilesReply(self._loop, [], names, self.program["max_file_bytes"])
        self._start_task(task, partial(self._on_fetched, fields, compile_output, reply), limits, control=reply.control)
        reply.on_sent()

    def _on_fetched(self, fields: "ProcessFields", compile_output: str, reply: FilesReply, ending: Ending) -> None:
        fetched = reply.close(ending)
        if ending.had_no_core:
            self._end({"kind": "failed", "reason": "the machine had no core for the process that reads its files"})
            return
        if self.is_cancelled or ending.pod_ended_for == "evicted":
            self._has_no_result(_without_pod(ending))
            return
        if ending.is_systems:
            self._end({"kind": "failed", "reason": f"its files could not be read: {ending.failure}"})
            return
        self._answer(fields, compile_output, fetched)

    def _has_no_result(self, ending: Ending) -> bool:
        """Whether the program was cancelled or evicted, or the system failed; the run has then been ended."""
        if self.is_cancelled or ending.killed_by == "cancelled":
            self._end({"kind": "failed", "reason": "cancelled"})
        elif ending.killed_by == "evicted" and self._feed is not None and self._feed.has_begun:
            self._end({"kind": "failed", "reason": "the node ran out of memory while output was sent"})
        elif ending.killed_by == "evicted":
            self._end(None)
        elif ending.failure is not None:
            self._end({"kind": "failed", "reason": ending.failure})
        elif os.WIFSIGNALED(ending.status) and self.pod is not None and not self.pod.is_alive:  # killed with its pod
            self._end({"kind": "failed", "reason": "the pod's first process died"})
        else:
            return False
        return True

    def _process_fields(self, ending: Ending, limits: "LimitFields") -> "ProcessFields":
        assert self.task is not None, "a task that ended was never started"
        return process_fields(ending, limits, take_output(self.task.outputs))

    def _answer(self, fields: "ProcessFields", compile_output: str, fetched: "FetchedFields") -> None:
        self._end(
            {
                "kind": "run",
                **fields,
                **fetched,
                "compile_output": compile_output,
                "queue_seconds": self._queue_seconds,
            }
        )

    def _end(self, answer: "RunAnswer | Refusal | None") -> None:
        self._end_pod()
        self.task = None
        self._on_end(self, answer)


_NOTHING_FETCHED: "FetchedFields" = {"files": {}, "file_errors": {}}


def _without_pod(ending: Ending) -> Ending:
    """Ending of a process whose files are still needed: it counts as killed if its pod, and so the files, are gone."""
    return replace(ending, killed_by=ending.killed_by or ending.pod_ended_for)
