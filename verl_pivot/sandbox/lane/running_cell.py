"""A cell while it runs: its request, the socket of its answer, and its limits on time."""

import marshal
import os
import signal
import time
from collections.abc import Callable

from verl_pivot.sandbox.lane.answers import AnswerError, AnswerSocket
from verl_pivot.sandbox.lane.call_receiver import CallReceiver
from verl_pivot.sandbox.lane.control_groups import CpuCounter
from verl_pivot.sandbox.lane.core_time import (
    LOOK_AGAIN_SECONDS,
    CoreTime,
    Waiting,
    core_times,
    cpu_seconds_of_process,
    family,
    granted_seconds,
    lacked_core,
    look_at,
)
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.fd_passing import sealed_memory_file, send
from verl_pivot.sandbox.lane.interpreters import Interpreter
from verl_pivot.sandbox.lane.pods import send_signal
from verl_pivot.sandbox.lane.procfs import ProcessStat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from verl_pivot.sandbox.lane.interpreters import OnCellAnswer

_GRACE_SECONDS = 0.5
"""Seconds after the interrupt of a cell at which its interpreter is killed, if the cell has not ended."""
_CHECK_SECONDS = 0.05
"""Minimum seconds between two looks at the CPU time of a cell."""
_NUM_LOOKS = 8
"""Minimum number of looks before the wall limit: a process that ends between two looks takes its waits with it."""
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_NUM_CORES = os.cpu_count() or 1


class RunningCell:
    """The cell that a session runs now."""

    def __init__(
        self,
        loop: EventLoop,
        interpreter: Interpreter,
        answer: "OnCellAnswer",
        *,
        wall_seconds: float,
        cpu_seconds: float,
        max_bytes: int,
        calls: CallReceiver | None,
        on_texts: Callable[[str | None, str | None], None],
        kill: Callable[[str], None],
    ) -> None:
        """Take a cell for `interpreter`, which is idle.

        Args:
            loop: The lane's event loop.
            interpreter: Process that runs the cell.
            answer: Receiver of the answer, which the session calls.
            wall_seconds: Seconds that it may take, besides those in which it waits for a core.
            cpu_seconds: CPU seconds of the interpreter in this cell, and of each process that the cell starts.
            max_bytes: Maximum bytes of its value, and of its traceback.
            calls: Receiver of its calls of the host's functions; None if it may make no calls.
            on_texts: Called with value and traceback when they have come.
            kill: Called with the reason when the interpreter has to end.
        """
        assert interpreter.pid is not None, "a cell needs an interpreter that has said hello"
        self.answer = answer
        self.killed_by: str | None = None
        """Limit or reason for which it was interrupted, or its interpreter killed."""
        self.had_no_core = False
        """Whether it was interrupted for its wall limit for lack of a core."""
        self.calls = calls
        self._started_at = time.monotonic()
        self._began_at = time.clock_gettime(time.CLOCK_BOOTTIME) - _TICK_SECONDS
        self._loop = loop
        self._interpreter = interpreter
        self._pid = interpreter.pid
        self._wall_seconds = wall_seconds
        self._cpu_seconds = cpu_seconds
        self._max_bytes = max_bytes
        self._on_texts = on_texts
        self._kill = kill
        self._cpu_before = cpu_seconds_of_process(self._pid) or 0.0
        # Branches of a session have the same parent as its daemons, but are not daemons.
        self._shim_pid = interpreter.shared.pod.pid if interpreter.shared.num_users == 1 else None
        before = core_times(self._processes())
        before[self._pid] = CoreTime(self._cpu_before, interpreter.starved_seconds)
        self._waiting = Waiting(before)
        # Branches also share the group of the pod.
        self._counter = CpuCounter(None if self._shim_pid is None else interpreter.shared.pod.group)
        self._socket = AnswerSocket(num_fields=2, max_bytes=max_bytes, max_total_bytes=2 * max_bytes)
        loop.on_readable(self._socket.fileno(), self._on_readable)
        self._look_seconds = wall_seconds / _NUM_LOOKS
        self._timer = loop.after(min(self._look_seconds, cpu_seconds / _NUM_CORES), self._check_limits)

    def send(self, number: int, code: str) -> None:
        """Ask the interpreter to run the code.

        Raises:
            OSError: If its channel is broken.
        """
        payload = sealed_memory_file(marshal.dumps((code, self._max_bytes)))
        sockets = [self._socket.theirs, *([] if self.calls is None else [self.calls.theirs])]
        answer, *calls = (each.fileno() for each in sockets)
        try:
            send(self._interpreter.channel, ("cell", number), (answer, payload, *calls))
        finally:
            os.close(payload)
            for each in sockets:
                each.close()

    def close(self) -> None:
        """Forget the cell, which has ended."""
        self._timer.cancel()
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        if self.calls is not None:
            self.calls.close()

    @property
    def wall_seconds(self) -> float:
        """Seconds since its start, without those in which it waited for replies to its calls."""
        waited_seconds = 0.0 if self.calls is None else self.calls.waited_seconds
        return time.monotonic() - self._started_at - waited_seconds

    def _on_readable(self) -> None:
        try:
            fields = self._socket.receive(self._pid)
        except EOFError:
            self._loop.forget(self._socket.fileno())
            self._interpreter.expect_end(self._loop, "the cell closed the interpreter's channels")
            return
        except (OSError, AnswerError) as error:
            self._kill(f"the interpreter's answer was refused: {error}")
            return
        if fields is not None:
            self._on_texts(_text(fields[0]), _text(fields[1]))

    def _check_limits(self) -> None:
        """Interrupt the cell if it is over a limit; time of waiting for a core is granted on top of the wall limit."""
        processes = self._processes()
        look_at(self._waiting, processes, time.monotonic())
        self._waiting.note_counted(self._counter.used_seconds)
        elapsed = self.wall_seconds
        waited = self._waiting.seconds(elapsed)
        granted = granted_seconds(waited, self._wall_seconds)
        missing_wall = self._wall_seconds + granted - elapsed
        own = (cpu_seconds_of_process(self._pid) or 0.0) - self._cpu_before
        own_children = [each for each in processes if each.pid != self._pid and each.started_at >= self._began_at]
        most = max((process.cpu_seconds for process in own_children), default=0.0)
        missing_cpu = self._cpu_seconds - max(own, most)
        if missing_wall <= 0.001 and self._waiting.is_undecided:
            self._timer = self._loop.after(LOOK_AGAIN_SECONDS, self._check_limits)
        elif missing_wall <= 0.001:
            self.had_no_core = lacked_core(waited, self._waiting.used_seconds, self._wall_seconds)
            self._interrupt("timeout")
        elif missing_cpu <= 0.0:
            self._interrupt("cpu_limit")
        else:
            wait = max(_CHECK_SECONDS, missing_cpu / _NUM_CORES)
            self._timer = self._loop.after(min(missing_wall, wait, self._look_seconds), self._check_limits)

    def _processes(self) -> list[ProcessStat]:
        """The interpreter and all processes that its cells have left running; empty without /proc."""
        return family(self._pid, self._shim_pid) if self._interpreter.has_proc else []

    def _interrupt(self, reason: str) -> None:
        self.killed_by = reason
        if self._interpreter.pidfd is not None:
            send_signal(self._interpreter.pidfd, signal.SIGINT)
        self._timer = self._loop.after(_GRACE_SECONDS, lambda: self._kill(reason))


def _text(field: bytes | None) -> str | None:
    """Text of a field; bytes that are no UTF-8 become \\xNN."""
    return None if field is None else field.decode("utf-8", "backslashreplace")
