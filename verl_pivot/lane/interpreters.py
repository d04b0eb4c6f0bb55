"""A session's interpreter and what it says, which is read as the words of a stranger."""

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from verl_pivot.lane.frames import FrameError, Message, decode_object
from verl_pivot.lane.loop import Timer
from verl_pivot.lane.outputs import Capture
from verl_pivot.lane.pods import Pod
from verl_pivot.lane.processes import Process

_MAX_ANSWER_BYTES = 64 * 1024**2
_CREDENTIALS = struct.Struct("3i")

Answer = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class SharedPod:
    """A pod and the number of interpreters in it: a session and its branches."""

    pod: Pod
    num_users: int = 1


@dataclass(slots=True)
class Cell:
    """The cell that runs."""

    answer: Answer
    payload: int
    wall_seconds: float
    started_at: float
    starved_before: float
    timer: Timer
    killed_by: str | None = None


@dataclass(slots=True)
class Interpreter:
    """A process that runs cells, known by its end of the channel."""

    shared: SharedPod
    channel: socket.socket
    outputs: tuple[Capture, Capture]
    on_end: Callable[["Interpreter", str], None]
    """Called when it is seen to be dead."""
    process: Process | None = None
    """None for a branch, which no zygote forked."""
    pidfd: int | None = None
    """None until it has said hello."""
    pid: int | None = None
    schedstat: int | None = None
    """Tells for how long it had no core; None without /proc."""

    # What the zygote tells of its process.

    def on_forked(self, pid: int) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None:
        self.on_end(self, "the interpreter ended")

    def on_fork_failed(self, reason: str) -> None:
        self.on_end(self, reason)

    def on_zygote_lost(self) -> None:
        """It lives on without it, unless it was still to be forked."""
        if self.pidfd is None:
            self.on_end(self, "the zygote of the lane died")


def new_channel() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def receive_words(channel: socket.socket) -> tuple[Message, int]:
    """The next message, and the sender's process id as the kernel attests it."""
    data, ancillary, _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_DONTWAIT)
    if not data:
        raise FrameError("the channel was closed")
    pid = next(_CREDENTIALS.unpack(content)[0] for _, kind, content in ancillary if kind == socket.SCM_CREDENTIALS)
    message = decode_object(data)
    if type(message.get("id")) is not int:
        raise FrameError("a message without the number of a request")
    return message, pid


def read_answer(payload: int) -> dict[str, Any]:
    """What the interpreter wrote of a cell, taken as the text of a stranger.

    Raises:
        FrameError: If it is too long or has another form.
    """
    size = os.fstat(payload).st_size
    if size > _MAX_ANSWER_BYTES:
        raise FrameError("the answer is too long")
    try:
        answer = decode_object(os.pread(payload, size, 0))
        texts = {name: answer[name] for name in ("value", "error")}
    except KeyError as error:
        raise FrameError("the answer has another form") from error
    if any(text is not None and not isinstance(text, str) for text in texts.values()):
        raise FrameError("the answer has another form")
    return {name: text and text.encode("utf-8", "backslashreplace").decode() for name, text in texts.items()}
