"""Requests about sessions whose interpreter is gone, or whose files could not be moved."""

from types import SimpleNamespace
from typing import Any

import pytest

from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.interpreters import KILL_REASONS
from verl_pivot.sandbox.lane.lane_session import LaneSession
from verl_pivot.sandbox.lane.pods import PodShape
from verl_pivot.sandbox.lane.running_task import Ending
from verl_pivot.sandbox.lane.session_requests import SessionRequests, answer_of_move

SHAPE = PodShape(
    tmp_bytes=1 << 20, num_tmp_files=10, memory_bytes=1 << 30, num_processes=64, network="none", has_proc=True
)
MOVED: Any = {"files": {}, "file_errors": {"in.txt": "it could not be copied"}}
POD: Any = SimpleNamespace()


def ended_session(reason: str) -> LaneSession:
    """A session whose interpreter was ended for a reason."""
    place: Any = {"environment": {}, "folder": ""}
    limits: Any = {}
    session = LaneSession(
        "s", limits, SHAPE, EventLoop(), place=place, terminal=None, functions=[], total_cpu_seconds=1
    )
    session.last_reason = reason
    return session


@pytest.mark.parametrize(
    "ending",
    [
        Ending(failure="the zygote of the lane died", is_systems=True),
        Ending(failure="the machine ran out of memory", is_systems=True),
        Ending(killed_by="timeout", had_no_core=True, status=9),
    ],
)
def test_files_that_the_system_could_not_move_lose_the_session(ending: Ending) -> None:
    answer = answer_of_move(ended_session("its interpreter ended"), POD, MOVED, ending)

    assert answer["kind"] == "lost"


def test_files_of_an_evicted_session_are_lost_with_it() -> None:
    answer = answer_of_move(ended_session(KILL_REASONS["evicted"]), POD, MOVED, Ending(status=9))

    assert answer == {"kind": "lost", "reason": KILL_REASONS["evicted"]}


@pytest.mark.parametrize(
    "ending", [Ending(), Ending(status=9), Ending(failure="the process ended before it was ready", status=9)]
)
def test_what_the_sessions_own_processes_can_cause_is_told_file_by_file(ending: Ending) -> None:
    answer = answer_of_move(ended_session(KILL_REASONS["memory_limit"]), POD, MOVED, ending)

    assert answer == {"kind": "files", **MOVED}


def test_a_cell_that_was_cancelled_before_its_interpreter_started_starts_none() -> None:
    zygote, spares = SimpleNamespace(is_ready=False), SimpleNamespace()
    requests = SessionRequests(
        EventLoop(),
        spares,
        zygote,
        has_proc=False,
        folders=[],
        cpu_seconds=1,
        on_start=lambda: None,  # type: ignore[arg-type]
    )
    session = ended_session("its interpreter ended")
    requests._sessions["s"] = session
    answers: list[Any] = []
    cell: Any = {"op": "cell", "session": "s", "epoch": session.epoch, "code": "1", "streams": False, "calls": None}
    abandon: Any = {"op": "abandon", "session": "s"}

    requests.serve(cell, answers.append)
    requests.serve(abandon, answers.append)

    assert answers == [{"kind": "failed", "reason": "its cell was cancelled"}, {"kind": "done"}]
    assert not requests._starts
