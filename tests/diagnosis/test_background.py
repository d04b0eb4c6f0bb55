"""Programs of `verl-pivot doctor` that run in the background of other checks."""

import os

import pytest

from verl_pivot.diagnosis.background import Answer, BackgroundProgram


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print('a'); print('b')", Answer(succeeded=True, line="b")),
        ("print('a'); raise ImportError('no libcuda')", Answer(succeeded=False, line="ImportError: no libcuda")),
        ("import os; os._exit(7)", Answer(succeeded=False, line="exit code 7")),
    ],
)
def test_the_answer_is_the_last_line(code: str, answer: Answer) -> None:
    assert BackgroundProgram(code, os.environ).answer() == answer


def test_a_program_that_ended_in_time_has_answered_however_late_it_is_asked() -> None:
    """Its output is more than a pipe holds, and a process that it left behind still has it open."""
    code = "import subprocess; subprocess.Popen(['sleep', '3']); print('x' * 1_000_000); print('b')"
    program = BackgroundProgram(code, os.environ)
    program._process.wait(60)

    assert program.answer(timeout_seconds=0.0) == Answer(succeeded=True, line="b")


def test_a_program_that_does_not_answer_is_ended() -> None:
    program = BackgroundProgram("import time; time.sleep(60)", os.environ)

    assert program.answer(timeout_seconds=0.2) == Answer(succeeded=False, line="no answer within 0 s")
    program.stop()
