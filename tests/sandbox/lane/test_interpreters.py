"""Why the interpreter of a session ended: faults of its own are told to the cell, those of the system lose it."""

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from verl_pivot.sandbox.lane import control_groups
from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.interpreters import KILL_REASONS, Interpreter, SharedPod, new_channel
from verl_pivot.sandbox.lane.lane_session import LaneSession
from verl_pivot.sandbox.lane.pods import PodShape

SHAPE = PodShape(
    tmp_bytes=1 << 20, num_tmp_files=10, memory_bytes=1 << 30, num_processes=64, network="none", has_proc=True
)
KILLED, ABORTED, LEFT = 9, 6, 3 << 8


class Group:
    """Control group that counts kills: of the machine's for lack of memory, or of the pod's own limit."""

    def __init__(self, *, has_lost: bool, has_run_out: bool = False) -> None:
        self._has_lost, self._has_run_out = has_lost, has_run_out

    def has_lost_processes(self) -> bool:
        return self._has_lost

    def has_run_out(self) -> bool:
        return self._has_run_out


class Cell:
    """Running cell that keeps its answer."""

    def __init__(self) -> None:
        self.killed_by: str | None = None
        self.had_no_core, self.wall_seconds = False, 0.5
        self.answers: list[Any] = []
        self.answer = self.answers.append

    def close(self) -> None:
        """Nothing is open."""


def new_session(group: Group | None, *, is_alive: bool = True) -> tuple[LaneSession, Interpreter]:
    """A session, and its interpreter, which has said hello."""
    place: Any = {"environment": {}, "folder": ""}
    limits: Any = {}
    session = LaneSession(
        "s", limits, SHAPE, EventLoop(), place=place, terminal=None, functions=[], total_cpu_seconds=1
    )
    has_run_out = group is not None and group.has_run_out()
    pod: Any = SimpleNamespace(group=group, has_run_out=has_run_out, is_alive=is_alive, end=lambda: None)
    ours, theirs = new_channel()
    theirs.close()
    outputs = (Capture(10), Capture(10))
    interpreter = Interpreter(SharedPod(pod), channel=ours, outputs=outputs, on_end=session._on_end)
    interpreter.pidfd = os.pidfd_open(os.getpid())
    session.interpreter = interpreter
    return session, interpreter


def outcome(group: Group | None, status: int, *, is_alive: bool = True) -> tuple[str, str]:
    """(kind, reason or error) of the answer to the cell in which the interpreter ended."""
    session, interpreter = new_session(group, is_alive=is_alive)
    cell: Any = Cell()
    session._cell = cell
    interpreter.on_exited(status, 0.1, 0)
    (answer,) = cell.answers
    return answer["kind"], answer.get("reason") or answer["error"]


def test_an_interpreter_that_the_kernel_ended_as_the_machine_ran_out_of_memory_is_lost() -> None:
    assert outcome(Group(has_lost=True), KILLED) == ("lost", KILL_REASONS["evicted"])


@pytest.mark.parametrize(
    ("group", "status", "error"),
    [
        (Group(has_lost=True, has_run_out=True), KILLED, KILL_REASONS["memory_limit"]),
        (Group(has_lost=False), KILLED, "the interpreter was ended by signal 9"),
        (Group(has_lost=True), ABORTED, "the interpreter was ended by signal 6"),
        (Group(has_lost=True), LEFT, "the interpreter ended with exit code 3"),
    ],
)
def test_an_interpreter_that_its_own_cell_ended_is_told_why(group: Group, status: int, error: str) -> None:
    assert outcome(group, status) == ("cell", error)


@pytest.mark.parametrize(("is_noticed", "kind"), [(True, "lost"), (False, "cell")])
def test_without_a_group_a_kill_on_the_machine_since_the_cell_began_counts(
    is_noticed: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    since: list[float] = []

    def noticed_since(begin: float) -> bool:
        since.append(begin)
        return is_noticed

    monkeypatch.setattr(control_groups, "_memory_kills", SimpleNamespace(noticed_since=noticed_since))

    assert outcome(None, KILLED)[0] == kind
    assert 0.0 <= time.monotonic() - since[0] < 10.0


def test_a_session_whose_pod_was_ended_from_outside_is_lost() -> None:
    assert outcome(Group(has_lost=False), KILLED, is_alive=False) == ("lost", KILL_REASONS["pod_ended"])


def test_an_idle_session_that_the_machine_ended_tells_no_later_cell_that_it_is_to_blame() -> None:
    session, interpreter = new_session(Group(has_lost=True))

    interpreter.on_exited(KILLED, 0.1, 0)

    assert (session.tell_loss(1), session.last_reason) == (None, KILL_REASONS["evicted"])


def test_a_branch_of_which_no_zygote_reports_is_lost_with_the_machines_memory() -> None:
    session, interpreter = new_session(Group(has_lost=True))
    loop = EventLoop()

    interpreter.expect_end(loop, "the interpreter ended")
    loop.run_once(1.0)

    assert session.last_reason == KILL_REASONS["evicted"]
