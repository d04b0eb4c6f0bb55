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


def test_a_program_that_does_not_answer_is_ended() -> None:
    program = BackgroundProgram("import time; time.sleep(60)", os.environ)

    assert program.answer(timeout_seconds=0.2) == Answer(succeeded=False, line="no answer within 0 s")
    program.stop()
