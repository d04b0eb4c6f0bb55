"""Ctrl-C: the line that says how to go on, also while a command imports its modules."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from verl_pivot.cli import app
from verl_pivot.interrupts import stop

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


def helps(command: Any, *words: str) -> Iterator[tuple[str, str]]:
    """(words, help with that of every option) of each command in a group."""
    if subcommands := getattr(command, "commands", None):
        for word, each in subcommands.items():
            yield from helps(each, *words, word)
    else:
        texts = [command.help, *(getattr(each, "help", None) for each in command.params)]
        yield " ".join(words), " ".join(" ".join(text or "" for text in texts).split())


SAYS_IT_RESUMES = (
    r"(interrupted|stopped|rerun)\b[^.]*\b(continues?|goes on|reuses)\b|`plan` itself when it is run again"
)
WITH = {"route simulate": "--out=x", "process bench": "--cache", "environment-rows": "miniwob:click-button"}


def test_the_line_says_what_the_help_of_each_command_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resumes(name: str, word: str) -> bool:
        monkeypatch.setattr("sys.argv", ["verl-pivot", *name.split(), word])
        assert stop(name.split()[0]) == 130
        return "continues where it stopped" in capsys.readouterr().err

    told = {name: bool(re.search(SAYS_IT_RESUMES, text)) for name, text in helps(typer.main.get_command(app))}
    del told["search serve"]  # the example of that name resumes

    assert {name for name, resumed in told.items() if resumed} == {
        *("plan", "import", "profile", "select", "synthesize", "process label"),
        *WITH,
    }
    assert {name: resumes(name, WITH.get(name, "x")) for name in told} == told
    assert not any(resumes(name, "x") for name in WITH)


def test_a_background_job_of_a_shell_heeds_no_ctrl_c() -> None:
    ended = run_interrupted("import", before="signal.signal(signal.SIGINT, signal.SIG_IGN)")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "goes on\n", "")
