"""The messages of a lane: service and lane share one definition, which a lane does not import."""

import subprocess
import sys
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from tests.support.paths import ROOT
from verl_pivot.sandbox.execution import Limits, Program, Result, SessionState, Status, Timing
from verl_pivot.sandbox.lane import messages
from verl_pivot.sandbox.lane.messages import CellAnswer, OutputFields, RunAnswer
from verl_pivot.sandbox.service.lane_conversion import (
    FetchedFiles,
    cell_result,
    lane_program,
    limit_fields,
    run_result,
)
from verl_pivot.sandbox.service.language_options import Overhead
from verl_pivot.sandbox.service.languages import Language

OUTPUT: OutputFields = {
    "stdout": "a",
    "stderr": "b",
    "stdout_bytes": 10,
    "stderr_bytes": 1,
    "stdout_truncated": True,
    "stderr_truncated": False,
}


def language(zygote: str | None, compile: tuple[str, ...] | None) -> Language:
    return Language(
        name="any",
        file="main.any",
        run=("any", "main.any"),
        compile=compile,
        zygote=zygote,
        overhead=Overhead(memory_bytes=5, num_processes=2, num_open_files=3),
        compile_limits=Limits(wall_seconds=7.0),
    )


@pytest.mark.parametrize(("message", "shown"), [(messages.LimitFields, Limits), (messages.SessionFields, SessionState)])
def test_messages_have_the_fields_of_the_types_that_users_see(message: type, shown: type) -> None:
    assert get_type_hints(message) == {field.name: field.type for field in fields(shown)}


def test_every_request_has_an_operation_of_its_own() -> None:
    requests = get_args(messages.LaneRequest)

    operations = [get_args(get_type_hints(request)["op"])[0] for request in requests]

    assert sorted(operations) == sorted(
        ["run", "cancel", "more", "type", "ping", "open", "cell", "fork", "files", "abandon", "close", "reply"]
    )


def test_a_program_in_python_is_run_by_its_zygote_and_gets_the_overhead() -> None:
    program = Program(code="print(1)", args=("x",), stdin="in", files={"a/b": b"\x00\xff"}, fetch=("c",))

    wire = lane_program(program, language("auto", None), "full")

    assert (wire["kind"], wire["zygote"], wire["argv"], wire["compile"]) == ("python", "full", ["x"], None)
    assert (wire["file"], wire["code"], wire["stdin"], wire["fetch"]) == ("main.any", "print(1)", "in", ["c"])
    assert (wire["files"], wire["network"]) == ({"a/b": "AP8="}, "none")
    assert wire["limits"] == {
        **limit_fields(program.limits),
        "memory_bytes": 1024 * 1024**2 + 5,
        "num_processes": 66,
        "num_open_files": 259,
    }


def test_a_program_of_another_language_is_executed_and_compiled_under_limits_of_its_own() -> None:
    wire = lane_program(Program(code="", args=("x",)), language(None, ("cc", "main.any")), "bare")

    assert (wire["kind"], wire["argv"], wire["compile"]) == ("exec", ["any", "main.any", "x"], ["cc", "main.any"])
    assert wire["compile_limits"] == limit_fields(Limits(wall_seconds=7.0))


def test_the_answer_to_a_program_becomes_its_result() -> None:
    answer: RunAnswer = {
        "kind": "run",
        **OUTPUT,
        "status": "error",
        "exit_code": 3,
        "signal": None,
        "setup_seconds": 0.1,
        "wall_seconds": 0.2,
        "cpu_seconds": 0.3,
        "queue_seconds": 0.4,
        "peak_memory_bytes": 9,
        "had_no_core": True,
        "compile_output": "warning",
        "files": {"c": "AP8="},
        "file_errors": {"d": "not found"},
    }

    assert run_result(answer, "T2") == Result(
        status=Status.ERROR,
        exit_code=3,
        stdout="a",
        stderr="b",
        stdout_bytes=10,
        stderr_bytes=1,
        stdout_truncated=True,
        compile_output="warning",
        files={"c": b"\x00\xff"},
        file_errors={"d": "not found"},
        timing=Timing(queue_seconds=0.4, setup_seconds=0.1, wall_seconds=0.2, cpu_seconds=0.3),
        peak_memory_bytes=9,
        had_no_core=True,
        tier="T2",
    )


def test_the_answer_to_a_cell_becomes_its_result() -> None:
    answer: CellAnswer = {
        "kind": "cell",
        **OUTPUT,
        "status": "ok",
        "value": "2",
        "error": None,
        "wall_seconds": 0.2,
        "had_no_core": True,
        "session": {"id": "s", "epoch": 1, "num_cells": 4},
    }

    assert cell_result(answer, FetchedFiles(contents={"c": b"1"}, errors={"d": "not found"}), "T2") == Result(
        status=Status.OK,
        stdout="a",
        stderr="b",
        stdout_bytes=10,
        stderr_bytes=1,
        stdout_truncated=True,
        value="2",
        files={"c": b"1"},
        file_errors={"d": "not found"},
        timing=Timing(wall_seconds=0.2),
        had_no_core=True,
        session=SessionState(id="s", epoch=1, num_cells=4),
        tier="T2",
    )


@pytest.mark.parametrize(
    ("module", "absent"),
    [("zygote", {"typing", "dataclasses", "json", "messages"}), ("supervisor", {"asyncio", "base64", "messages"})],
)
def test_a_lane_imports_neither_its_messages_nor_what_takes_long(module: str, absent: set[str]) -> None:
    code = f"import sys, verl_pivot.sandbox.lane.{module}; print(*(name.rpartition('.')[2] for name in sys.modules))"

    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert absent & set(done.stdout.split()) == set()
