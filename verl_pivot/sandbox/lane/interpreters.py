"""The interpreter of a session as its lane sees it: a process, its channel for requests, and why it ended."""

import math
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from verl_pivot.sandbox.lane.answer_fields import is_cpu_limit
from verl_pivot.sandbox.lane.answers import CREDENTIALS, HELLO, AnswerError, attested_pid
from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.control_groups import machine_ran_out
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.pods import Pod
from verl_pivot.sandbox.lane.procfs import starved_seconds
from verl_pivot.sandbox.lane.terminal import TerminalEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from verl_pivot.sandbox.lane.messages import CallAnswer, CellAnswer, Done, Refusal

    OnCellAnswer: TypeAlias = Callable[[CallAnswer | CellAnswer | Refusal], None]
    OnStarted: TypeAlias = Callable[[Done | Refusal], None]

_REPORT_SECONDS = 10.0
"""Seconds within which a zygote reports how a process ended, counted from the first sign of the end."""
KILL_REASONS = {
    "timeout": "the cell exceeded its time limit and could not be interrupted",
    "cpu_limit": "the cell used up its CPU time and could not be interrupted",
    "memory_limit": "the session used more memory than its limit",
    "evicted": "the node ran out of memory",
    "pod_ended": "something outside of the session ended its sandbox",
    "no_reply": "a call of a host function got no reply",
    "output_limit": "the cell wrote more output than is allowed",
}
"""Limit for which an interpreter was killed -> the sentence that the user reads."""


@dataclass(slots=True)
class SharedPod:
    """A pod and the number of interpreters in it: that of a session, and those of its branches."""

    pod: Pod
    num_users: int = 1


@dataclass(slots=True)
class Interpreter:
    """A process that runs cells."""

    shared: SharedPod
    channel: socket.socket
    outputs: tuple[Capture, Capture]
    on_end: Callable[["Interpreter", str], None]
    """Called with the reason when the process has ended, or was never started."""
    process: PodProcess | None = None
    """Process that a zygote forked; None for a branch, which its parent forked."""
    terminal: TerminalEnd | None = None
    """Terminal of its output; None where that goes through pipes."""
    pidfd: int | None = None
    """Descriptor of the process; None until its first message."""
    pid: int | None = None
    schedstat: int | None = None
    """Descriptor of its scheduling statistics; None without /proc."""
    total_cpu_seconds: float = math.inf
    """CPU seconds after which the kernel ends it."""
    used_at: float = field(default_factory=time.monotonic)
    """Time on the monotonic clock at which its latest cell began, or it was started."""
    is_zygote_lost: bool = False
    """Whether the zygote that forked it is gone, so that nobody will report how it ended."""

    @property
    def has_proc(self) -> bool:
        """Whether its scheduling statistics can be read."""
        return self.schedstat is not None

    def expect_end(self, loop: EventLoop, reason: str) -> None:
        """Call `on_end` soon, as the process ends; with `reason`, unless its zygote reports before how it ended."""
        is_reported = self.process is not None and not self.is_zygote_lost
        if not is_reported and machine_ran_out(self.shared.pod.group, self.used_at):
            reason = "evicted"
        loop.after(_REPORT_SECONDS if is_reported else 0.0, partial(self.on_end, self, reason))

    def drain(self) -> None:
        """Read the output that is there now."""
        if self.terminal is not None:
            self.terminal.settle()
        for output in self.outputs:
            output.drain()

    def close(self, loop: EventLoop) -> None:
        """Close its outputs and the lane's descriptors of the process, which has ended or is about to."""
        if self.terminal is not None:
            self.terminal.close()
        for output in self.outputs:
            loop.forget(output.read_end)
            os.close(output.read_end)
        if self.pidfd is not None:
            loop.forget(self.pidfd)
            os.close(self.pidfd)
        if self.schedstat is not None:
            os.close(self.schedstat)

    @property
    def starved_seconds(self) -> float:
        """Time that the process was ready to run and had no core."""
        return 0.0 if self.schedstat is None else starved_seconds(self.schedstat)

    # Reports of the zygote about the process: see pod_process.Owner.

    def on_forked(self, pid: int) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None:
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if self.shared.pod.has_run_out:
            self.on_end(self, KILL_REASONS["memory_limit"])
        elif was_killed and machine_ran_out(self.shared.pod.group, self.used_at):
            self.on_end(self, "evicted")
        else:
            self.on_end(self, _why_ended(status, cpu_seconds, self.total_cpu_seconds))

    def on_fork_failed(self, reason: str) -> None:
        self.on_end(self, reason)

    def on_zygote_lost(self) -> None:
        """Give up a process that may never have been forked; one that has sent a message goes on without its zygote."""
        self.is_zygote_lost = True
        if self.pidfd is None:
            self.on_end(self, "the zygote of the lane died")


def _why_ended(status: int, cpu_seconds: float, total_cpu_seconds: float) -> str:
    """Sentence about the end of an interpreter, from its wait status and its CPU time."""
    if os.WIFEXITED(status):
        return f"the interpreter ended with exit code {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    if is_cpu_limit(number, cpu_seconds, total_cpu_seconds):
        return f"the session used up its {total_cpu_seconds} CPU seconds"
    return f"the interpreter was ended by signal {number}"


def new_channel() -> tuple[socket.socket, socket.socket]:
    """The lane's end and the interpreter's end of a channel for requests; see `receive_hello`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def receive_hello(channel: socket.socket) -> int:
    """Process id, as the kernel attests it, of the interpreter that says hello; it can send nothing more afterwards.

    Raises:
        AnswerError: If the channel is closed.
    """
    data, ancillary, _, _ = channel.recvmsg(len(HELLO), socket.CMSG_SPACE(CREDENTIALS.size), socket.MSG_DONTWAIT)
    if not data:
        raise AnswerError("the channel was closed")
    channel.shutdown(socket.SHUT_RD)
    return attested_pid(ancillary)
