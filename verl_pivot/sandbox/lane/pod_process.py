"""A process in a pod, from its fork to its end. It is forked and confined first, and gets its task later.

So it can be made before the program that it will run has come; see spares.py.
"""

import contextlib
import marshal
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.confinement import READY
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.fd_passing import sealed_memory_file, send
from verl_pivot.sandbox.lane.pods import Pod
from verl_pivot.sandbox.lane.zygote_handle import ZygoteHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.process_messages import LaneTask, PodEntry


class Owner(Protocol):
    """Receiver of the events of a process that has a task."""

    def on_forked(self, pid: int) -> None: ...

    def on_fork_failed(self, reason: str) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None: ...

    def on_zygote_lost(self) -> None: ...


class PodProcess:
    """One process, forked by `zygote` into `pod`; the first process of a pod mounts the pod's file systems."""

    def __init__(self, loop: EventLoop, zygote: ZygoteHandle, pod: Pod, *, is_first: bool = True) -> None:
        self.pod = pod
        self.zygote = zygote
        self._loop = loop
        self._pid: int | None = None
        self.was_ahead = False
        """Whether the process was made before its task was known."""
        self._owner: Owner | None = None
        self._pending_end: Callable[[Owner], None] | None = None
        """Report of the end, kept for the future owner, if the process ended before it had one."""
        self._report, report_write_end = os.pipe()
        os.set_blocking(self._report, False)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shape = pod.shape
        tmp = (shape.tmp_bytes, shape.num_tmp_files, shape.root, shape.hidden) if is_first else None
        entry: PodEntry = (shape.namespaces, tmp, shape.has_loopback, pod.user_id, shape.has_terminal)
        entrances = pod.group.entrances() if pod.group is not None else ()
        zygote.fork(self, entry, (pod.pidfd, theirs.fileno(), report_write_end, *entrances))
        for fd in entrances:
            os.close(fd)
        theirs.close()
        os.close(report_write_end)

    @property
    def is_spare(self) -> bool:
        """Whether the process waits for a task."""
        return self._owner is None

    @property
    def has_ended(self) -> bool:
        """Whether the process ended before it had a task."""
        return self._pending_end is not None

    def give(
        self,
        owner: Owner,
        task: "LaneTask",
        *,
        stdin: bytes,
        outputs: tuple[Capture, Capture],
        control: int | None = None,
        terminal: int | None = None,
    ) -> None:
        """Give the process its task. To be called once.

        Args:
            owner: Receiver of the start and the end; of the start at once, if the process runs already.
            task: Work for it.
            stdin: The whole standard input.
            outputs: Captures of stdout and stderr.
            control: The interpreter's end of its channel for a CellsTask, the descriptor for the answer of a FilesTask.
            terminal: The process's end of TerminalEnd; None for a task without a terminal.
        """
        self._owner = owner
        content: Any = task  # marshal's types know no TypedDict
        payload = sealed_memory_file(marshal.dumps(content))
        stdin_fd = sealed_memory_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        passed = (stdin_fd, outputs[0].write_end, outputs[1].write_end, payload)
        if self._pending_end is None:
            with contextlib.suppress(OSError):  # it has just ended, which its zygote will report
                send(self._orders, (), (*passed, *(fd for fd in (control, terminal) if fd is not None)))
        else:
            self._loop.after(0.0, partial(self._pending_end, owner))
        for fd in passed:
            os.close(fd)
        self._orders.close()
        if self._pid is not None:
            owner.on_forked(self._pid)

    def discard(self) -> None:
        """End a spare process."""
        self.pod.end()
        self._orders.close()
        os.close(self._report)

    def close(self) -> None:
        """Close the descriptors of a process that had a task and has ended."""
        os.close(self._report)

    def failure(self) -> str | None:
        """Reason why the process never reached the user's code; None if it did."""
        try:
            text = os.read(self._report, 1024)
        except BlockingIOError:
            text = b""
        return None if text == READY else text.decode("utf-8", "replace") or "the process ended before it was ready"

    def on_forked(self, pid: int) -> None:
        self._pid = pid
        if self._owner is not None:
            self._owner.on_forked(pid)

    def on_fork_failed(self, reason: str) -> None:
        self._end(lambda owner: owner.on_fork_failed(reason))

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None:
        self._end(lambda owner: owner.on_exited(status, cpu_seconds, peak_bytes))

    def on_zygote_lost(self) -> None:
        self._end(lambda owner: owner.on_zygote_lost())

    def _end(self, report: Callable[[Owner], None]) -> None:
        if self._owner is not None:
            report(self._owner)
        else:
            self._pending_end = report
