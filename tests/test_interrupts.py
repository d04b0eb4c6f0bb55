"""Ctrl-C while a command imports its modules."""

import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
import os, signal
from verl_pivot.interrupts import ended_by_interrupt

{before}
with ended_by_interrupt({command!r}):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        pass  # as some libraries do while they are imported
print("goes on")
"""


def run_interrupted(command: str, before: str = "") -> "subprocess.CompletedProcess[str]":
    program = INTERRUPTED.format(command=command, before=before)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("profile", "continues where it stopped"),
        ("synthesize", "continues where it stopped"),
        ("quickstart", "continues where it stopped"),
        ("doctor", "begins again from the start"),
    ],
)
def test_an_import_that_swallows_ctrl_c_ends_with_the_line_nevertheless(command: str, how: str) -> None:
    ended = run_interrupted(command)

    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == f"Stopped. The same command {how} when it is run again.\n"


def test_a_background_job_of_a_shell_heeds_no_ctrl_c() -> None:
    ended = run_interrupted("import", before="signal.signal(signal.SIGINT, signal.SIG_IGN)")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "goes on\n", "")
