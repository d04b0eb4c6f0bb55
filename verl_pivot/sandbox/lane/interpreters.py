"""The interpreter of a session, and its messages, which the user's code in the same process can forge."""

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.event_loop import Timer
from verl_pivot.sandbox.lane.frames import FrameError, decode_object
from verl_pivot.sandbox.lane.pod_process import PodProcess
from verl_pivot.sandbox.lane.pods import Pod
from verl_pivot.sandbox.lane.procfs import starved_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from verl_pivot.sandbox.lane.messages import CellAnswer, Done, Refusal
    from verl_pivot.sandbox.lane.process_messages import CellWords

    OnCellAnswer: TypeAlias = Callable[[CellAnswer | Refusal], None]
    OnStarted: TypeAlias = Callable[[Done | Refusal], None]

_MAX_ANSWER_BYTES = 64 * 1024**2
_CREDENTIALS = struct.Struct("3i")

KILL_REASONS = {
    "timeout": "the cell did not end within its time and would not be interrupted",
    "memory_limit": "the session used more memory than its limit",
    "evicted": "the node ran out of memory",
    "output_limit": "the cell wrote more output than may be read",
}
"""Limit for which an interpreter was killed -> the sentence that the user reads."""


@dataclass(slots=True)
class SharedPod:
    """A pod and the number of interpreters in it: that of a session, and those of its branches."""

    pod: Pod
    num_users: int = 1


@dataclass(slots=True)
class RunningCell:
    """The cell that a session runs now."""

    answer: "OnCellAnswer"
    payload: int
    """Descriptor of the memory file with the code, into which the interpreter writes CellWords."""
    wall_seconds: float
    started_at: float
    starved_before: float
    """Seconds for which the interpreter had waited for a core when the cell began."""
    timer: Timer
    killed_by: str | None = None


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
    pidfd: int | None = None
    """Descriptor of the process; None until its first message."""
    pid: int | None = None
    schedstat: int | None = None
    """Descriptor of its scheduling statistics; None without /proc."""

    @property
    def starved_seconds(self) -> float:
        """Time that the process was ready to run and had no core."""
        return 0.0 if self.schedstat is None else starved_seconds(self.schedstat)

    # What the zygote reports of the process: see pod_process.Owner.

    def on_forked(self, pid: int) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None:
        self.on_end(self, "the interpreter ended")

    def on_fork_failed(self, reason: str) -> None:
        self.on_end(self, reason)

    def on_zygote_lost(self) -> None:
        """Give up a process that may never have been forked; one that has sent a message goes on without its zygote."""
        if self.pidfd is None:
            self.on_end(self, "the zygote of the lane died")


class InterpreterMessage(NamedTuple):
    """One message of an interpreter, checked; see messages.InterpreterFrame."""

    number: int
    refusal: str | None
    pid: int
    """Process id of the sender, as the kernel attests it."""


def new_channel() -> tuple[socket.socket, socket.socket]:
    """The lane's end and the interpreter's end of a channel on which the kernel attests who sends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def receive_message(channel: socket.socket) -> InterpreterMessage:
    """The next message of an interpreter.

    Raises:
        FrameError: If the channel is closed, or the message is not of the agreed form.
    """
    data, ancillary, _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_DONTWAIT)
    if not data:
        raise FrameError("the channel was closed")
    pid = next(_CREDENTIALS.unpack(content)[0] for _, kind, content in ancillary if kind == socket.SCM_CREDENTIALS)
    message = decode_object(data)
    number = message.get("id")
    if type(number) is not int:
        raise FrameError("a message without the number of a request")
    return InterpreterMessage(number, str(message["refused"]) if "refused" in message else None, pid)


def read_words(payload: int) -> "CellWords":
    """Outcome of a cell, which the interpreter wrote into the memory file `payload`.

    Raises:
        FrameError: If it is too long or not of the agreed form.
    """
    size = os.fstat(payload).st_size
    if size > _MAX_ANSWER_BYTES:
        raise FrameError(f"an interpreter's answer of {size} bytes is longer than {_MAX_ANSWER_BYTES}")
    answer = decode_object(os.pread(payload, size, 0))
    if not {"value", "error"} <= answer.keys():
        raise FrameError("an interpreter's answer must have the fields value and error")
    return {"value": _clean_text(answer["value"]), "error": _clean_text(answer["error"])}


def _clean_text(text: object) -> str | None:
    """Text that UTF-8 can carry; a lone surrogate is written as \\uNNNN.

    Raises:
        FrameError: If it is not text.
    """
    if text is None:
        return None
    if not isinstance(text, str):
        raise FrameError(f"an interpreter's answer must hold text, got {type(text).__name__}")
    return text.encode("utf-8", "backslashreplace").decode()
