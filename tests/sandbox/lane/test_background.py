"""Programs that the background of a lane stops and continues by signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from verl_pivot.sandbox.lane.background import Background
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.procfs import ProcessSnapshot, UsageSample, read_process
from verl_pivot.sandbox.lane.runs import Run

PARENT = "import os, signal\nchild = os.fork()\nif child:\n    print(child, flush=True)\nsignal.pause()"


class Running:
    """A program of two processes that sleep, as the background sees it."""

    attained_seconds = cpu_seconds = unused_seconds = 0.0
    may_be_forking = has_threads = is_crowd = False

    def __init__(self, pid: int, child: int) -> None:
        self.child = child
        self.groups, self.pids = frozenset({pid}), (pid,)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def set_frozen(self, *, is_frozen: bool) -> bool:
        return False

    def stop_child(self) -> None:
        """Stop the child alone, as the kernel does with the child of a fork that outlasts the stop of its group."""
        os.kill(self.child, signal.SIGSTOP)
        assert self.becomes(is_stopped=True)

    def becomes(self, *, is_stopped: bool) -> bool:
        """Whether the child is stopped, or is not, within a second."""
        end = time.monotonic() + 1
        while (process := read_process(self.child)) is not None and process.is_stopped is not is_stopped:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return process is not None

    def sample_when(self, *, is_stopped: bool) -> UsageSample:
        """Sample of the first moment at which both processes are stopped, or else both are asleep."""
        end = time.monotonic() + 10
        while not (sample := self.sample()).is_asleep or sample.is_stopped is not is_stopped:
            assert time.monotonic() < end
            time.sleep(0.01)
        return sample

    def sample(self) -> UsageSample:
        return ProcessSnapshot().sample(-1, self.pids[0], shared_bytes=0, limit_bytes=1 << 40)


@contextmanager
def running() -> Iterator[Any]:
    """A Running whose two processes live, in a process group of their own, until the end."""
    command = [sys.executable, "-S", "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as parent:
        assert parent.stdout is not None
        try:
            yield cast(Run, Running(parent.pid, int(parent.stdout.readline())))
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_child_that_its_fork_stopped_after_the_program_went_on_goes_on_too() -> None:
    background = Background(EventLoop())
    with running() as run:
        background.add(run)  # which stops the program and, as no other is there, continues it
        run.stop_child()

        background.continue_again(run, run.sample())

        assert run.becomes(is_stopped=False)


def test_a_child_that_the_program_itself_stops_stays_stopped() -> None:
    background = Background(EventLoop())
    with running() as run:
        background.add(run)
        background.continue_again(run, run.sample_when(is_stopped=False))  # no process runs, and so none is forking
        run.stop_child()

        background.continue_again(run, run.sample())

        assert not run.becomes(is_stopped=False)


def test_a_program_whose_processes_were_all_seen_stopped_has_no_fork_that_outlasts_the_stop() -> None:
    background = Background(EventLoop())
    with running() as run, running() as other:
        background.add(run)
        other.attained_seconds = -1.0
        background.add(other)  # which takes the turn, so that `run` stops
        background.stop_again(run, run.sample_when(is_stopped=True))
        background.remove(other)
        assert run.becomes(is_stopped=False)
        run.stop_child()

        background.continue_again(run, run.sample())

        assert not run.becomes(is_stopped=False)
