"""A process in a pod, from its fork to its end: it is forked and locked up first, and gets its task when there is one.

So one can be made ahead of the program that it will run; see spares.py.
"""

import contextlib
import marshal
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from verl_pivot.lane.entry import READY
from verl_pivot.lane.loop import Loop
from verl_pivot.lane.outputs import Capture
from verl_pivot.lane.passing import memory_file, send
from verl_pivot.lane.pods import NETWORK_LOOPBACK, Pod
from verl_pivot.lane.zygotes import Zygote


class Owner(Protocol):
    """Whose task it has."""

    def on_forked(self, pid: int) -> None: ...

    def on_fork_failed(self, reason: str) -> None: ...

    def on_exited(self, status: int, cpu_seconds: float, peak_bytes: int) -> None: ...

    def on_zygote_lost(self) -> None: ...


class Process:
    """Forked into `pod`, which its first process furnishes."""

    def __init__(self, loop: Loop, zygote: Zygote, pod: Pod, *, is_first: bool = True) -> None:
        self.pod = pod
        self.zygote = zygote
        self._loop = loop
        self._payload: int | None = None
        self._pid: int | None = None
        self._owner: Owner | None = None
        self._tell_end: Callable[[Owner], None] | None = None
        """If it has ended before it had an owner."""
        self._report, report_write_end = os.pipe()
        os.set_blocking(self._report, False)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        shape = pod.shape
        tmp = (shape.tmp_bytes, shape.num_tmp_files) if is_first else None
        place = (shape.namespaces, tmp, shape.network == NETWORK_LOOPBACK)
        zygote.fork(self, place, (pod.pidfd, theirs.fileno(), report_write_end))
        theirs.close()
        os.close(report_write_end)

    @property
    def payload(self) -> int:
        """The memory file of its task; helpers and sessions answer in it."""
        assert self._payload is not None
        return self._payload

    @property
    def is_spare(self) -> bool:
        """It waits for its task."""
        return self._owner is None

    @property
    def has_ended(self) -> bool:
        """Before it had a task."""
        return self._tell_end is not None

    def give(
        self,
        owner: Owner,
        task: dict[str, Any],
        *,
        stdin: bytes,
        outputs: tuple[Capture, Capture],
        control: int | None = None,
    ) -> None:
        """Its task, once; `owner` is told of its start, at once if that was before, and of its end."""
        self._owner = owner
        self._payload = memory_file(marshal.dumps(task))
        stdin_fd = memory_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        passed = (stdin_fd, outputs[0].write_end, outputs[1].write_end)
        if self._tell_end is None:
            with contextlib.suppress(OSError):  # it has just ended, and its zygote will say so
                send(self._orders, (), (*passed, self._payload, *(() if control is None else (control,))))
        else:
            self._loop.after(0.0, partial(self._tell_end, owner))
        for fd in passed:
            os.close(fd)
        self._orders.close()
        if self._pid is not None:
            owner.on_forked(self._pid)

    def discard(self) -> None:
        """End a spare."""
        self.pod.end()
        self._orders.close()
        os.close(self._report)

    def close(self) -> None:
        """Forget the descriptors of one that had a task and is gone."""
        os.close(self._report)
        if self._payload is not None:
            os.close(self._payload)

    def failure(self) -> str | None:
        """Why it did not come as far as the user's code; None if it did."""
        try:
            text = os.read(self._report, 1024)
        except BlockingIOError:
            text = b""
        return None if text == READY else text.decode("utf-8", "replace") or "it ended before it was ready"

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

    def _end(self, tell: Callable[[Owner], None]) -> None:
        if self._owner is not None:
            tell(self._owner)
        else:
            self._tell_end = tell
