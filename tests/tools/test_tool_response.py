"""Text of tool responses, for every way in which a program can end."""

import pytest

from verl_pivot.sandbox.execution import Result, Status, Timing
from verl_pivot.tools.tool_response import render_tool_response


def make_result(status: Status = Status.OK, *, stdout: str = "", stderr: str = "", **fields: object) -> Result:
    values = {"stdout_bytes": len(stdout.encode()), "stderr_bytes": len(stderr.encode()), **fields}
    return Result(status=status, stdout=stdout, stderr=stderr, timing=Timing(wall_seconds=0.0512), **values)  # type: ignore[arg-type]


def test_stdout_of_a_success() -> None:
    assert render_tool_response(make_result(stdout="24\n")) == "Tool call success\nstdout: 24\nexecution time: 0.05s"


def test_displayed_value_where_there_is_no_stdout() -> None:
    assert render_tool_response(make_result(value="21")) == "Tool call success\nstdout: 21\nexecution time: 0.05s"


def test_displayed_value_comes_after_stdout_as_in_a_notebook() -> None:
    assert render_tool_response(make_result(stdout="a\nb\n", value="21"), with_time=False) == (
        "Tool call success\nstdout: a\nb\n21"
    )


def test_warnings_of_a_success_are_shown() -> None:
    assert render_tool_response(make_result(stdout="1\n", stderr="slow\n"), with_time=False) == (
        "Tool call success\nstdout: 1\nstderr: slow"
    )


def test_success_without_any_output() -> None:
    assert render_tool_response(make_result(), with_time=False) == "Tool call success"


def test_error_with_its_traceback() -> None:
    trace = "Traceback (most recent call last):\n  File \"main.py\", line 1\nNameError: name 'x' is not defined\n"

    assert render_tool_response(make_result(Status.ERROR, exit_code=1, stdout="before\n", stderr=trace)) == (
        "Tool call failure\n"
        "reason: execution error, exit code 1\n"
        "stdout: before\n"
        "stderr: Traceback (most recent call last):\n"
        '  File "main.py", line 1\n'
        "NameError: name 'x' is not defined\n"
        "execution time: 0.05s"
    )


def test_error_of_a_cell_has_no_exit_code() -> None:
    assert render_tool_response(make_result(Status.ERROR, stderr="ZeroDivisionError"), with_time=False) == (
        "Tool call failure\nreason: execution error\nstderr: ZeroDivisionError"
    )


def test_time_out_shows_what_was_printed_before() -> None:
    assert render_tool_response(make_result(Status.TIMEOUT, stdout="step 1\n")) == (
        "Tool call failure\n"
        "reason: time-out error, it did not end within its time limit\n"
        "stdout: step 1\n"
        "execution time: 0.05s"
    )


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (9, "SIGKILL"), (40, "40")])
def test_signals_are_shown_by_their_names(number: int, name: str) -> None:
    assert render_tool_response(make_result(Status.SIGNALED, signal=number), with_time=False) == (
        f"Tool call failure\nreason: execution error, ended by signal {name}"
    )


def test_compile_errors_show_the_compiler() -> None:
    result = make_result(Status.COMPILE_ERROR, compile_output="main.c:1: expected ';'\n")

    assert render_tool_response(result, with_time=False) == (
        "Tool call failure\nreason: compile error\ncompiler: main.c:1: expected ';'"
    )


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_the_reason_of_every_failure_contains_the_word_error(status: Status) -> None:
    first, second, *_ = render_tool_response(make_result(status)).splitlines()

    assert first == "Tool call failure"
    assert "error" in second


def test_a_note_replaces_the_middle_of_a_long_output() -> None:
    assert render_tool_response(make_result(stdout="abcdefghij"), max_characters=5, with_time=False) == (
        "Tool call success\nstdout: ab\n... [5 characters left out] ...\nhij"
    )


def test_a_note_says_that_the_sandbox_cut_the_output_off() -> None:
    assert render_tool_response(
        make_result(stdout="abc", stdout_bytes=1000, stdout_truncated=True), with_time=False
    ) == ("Tool call success\nstdout: abc\n... [cut off: 1000 bytes were written]")
