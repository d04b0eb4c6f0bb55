"""The answer to a program whose pod was ended between the program's own end and the report of that end."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.lane.capture import Capture
from verl_pivot.sandbox.lane.event_loop import EventLoop
from verl_pivot.sandbox.lane.files_reply import FilesReply
from verl_pivot.sandbox.lane.pods import PodShape
from verl_pivot.sandbox.lane.running_task import Ending
from verl_pivot.sandbox.lane.runs import Run
from verl_pivot.sandbox.service.lane_conversion import lane_program
from verl_pivot.sandbox.service.languages import load_languages

SHAPE = PodShape(
    tmp_bytes=1 << 20, num_tmp_files=10, memory_bytes=1 << 30, num_processes=64, network="none", has_proc=True
)


class RunWithoutPod(Run):
    """A run whose program has ended, and whose pod was ended as well."""

    def __init__(self, *fetch: str) -> None:
        self.answers: list[Any] = []
        program = lane_program(
            Program(code="", fetch=fetch), load_languages(python=PythonView.of()).get("python"), "standard"
        )
        super().__init__(7, program, shape=SHAPE, on_end=lambda _, answer: self.answers.append(answer))
        self.outputs = (Capture(100), Capture(100))
        self.task = SimpleNamespace(outputs=self.outputs)  # type: ignore[assignment]
        self._queue_seconds = 0.0


@pytest.fixture
def with_files() -> Iterator[RunWithoutPod]:
    run = RunWithoutPod("values.json")
    yield run
    close(run)


def close(run: RunWithoutPod) -> None:
    for output in run.outputs:
        os.close(output.read_end)
        os.close(output.write_end)


def test_a_program_that_was_evicted_after_its_end_runs_again_if_its_files_are_wanted(with_files: RunWithoutPod) -> None:
    with_files._on_ran("", Ending(status=0, pod_ended_for="evicted"))

    assert with_files.answers == [None]


def test_a_limit_met_before_the_files_were_read_is_the_status(with_files: RunWithoutPod) -> None:
    with_files._on_ran("", Ending(status=0, pod_ended_for="timeout"))

    assert [answer["status"] for answer in with_files.answers] == ["timeout"]


def test_a_compiler_that_was_evicted_after_its_end_runs_again(with_files: RunWithoutPod) -> None:
    with_files._on_compiled(Ending(status=0, pod_ended_for="evicted"))

    assert with_files.answers == [None]


def test_a_program_evicted_while_its_files_are_read_runs_again(with_files: RunWithoutPod) -> None:
    ending = Ending(status=9, killed_by="evicted", pod_ended_for="evicted")
    reply = FilesReply(EventLoop(), [], ["values.json"], 100)
    reply.on_sent()

    with_files._on_fetched({}, "", reply, ending)  # type: ignore[typeddict-item]

    assert with_files.answers == [None]


def test_files_that_cannot_be_read_for_want_of_a_core_are_no_result(with_files: RunWithoutPod) -> None:
    ending = Ending(status=9, killed_by="timeout", pod_ended_for="timeout", had_no_core=True)
    reply = FilesReply(EventLoop(), [], ["values.json"], 100)
    reply.on_sent()

    with_files._on_fetched({}, "", reply, ending)  # type: ignore[typeddict-item]

    assert [answer["kind"] for answer in with_files.answers] == ["failed"]


@pytest.mark.parametrize(("is_systems", "kind"), [(True, "failed"), (False, "run")])
def test_files_that_the_system_could_not_read_are_no_result(
    with_files: RunWithoutPod, is_systems: bool, kind: str
) -> None:
    reply = FilesReply(EventLoop(), [], ["values.json"], 100)
    reply.on_sent()

    ending = Ending(failure="the zygote of the lane died", is_systems=is_systems)
    with_files._on_fetched({}, "", reply, ending)  # type: ignore[typeddict-item]

    assert [answer["kind"] for answer in with_files.answers] == [kind]


@pytest.mark.parametrize("had_no_core", [True, False])
def test_a_program_ended_at_its_limit_says_whether_it_had_a_core(with_files: RunWithoutPod, had_no_core: bool) -> None:
    with_files._on_ran("", Ending(status=9, killed_by="timeout", pod_ended_for="timeout", had_no_core=had_no_core))

    assert [(answer["status"], answer["had_no_core"]) for answer in with_files.answers] == [("timeout", had_no_core)]


def test_a_program_without_files_to_read_keeps_the_status_of_its_own_end() -> None:
    run = RunWithoutPod()

    run._on_ran("", Ending(status=0, pod_ended_for="evicted"))

    assert [answer["status"] for answer in run.answers] == ["ok"]
    close(run)
