"""Ctrl-C at any moment of a command: one line, exit code 130, no traceback."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.launching import MINIMAL

INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["verl-pivot", *{words!r}]
from verl_pivot.start import main
main()
"""
AGAIN = "Stopped. The same command {} when it is run again.\n"


@pytest.mark.parametrize(
    ("module", "words", "how"),
    [
        ("verl_pivot.cli", ("select", "t.jsonl"), "continues where it stopped"),
        ("typer", ("profile", "t.jsonl"), "continues where it stopped"),
        ("verl_pivot.commands.sandbox", ("route", "simulate"), "begins again from the start"),
        ("verl_pivot.commands.sandbox", ("route", "simulate", "--out", "t.json"), "continues where it stopped"),
        ("verl_pivot.commands.play", (), "begins again from the start"),
        ("pydantic", ("import", "in.jsonl", "--out", "out.jsonl"), "continues where it stopped"),
        ("verl_pivot.formats.importing", ("import", "in.jsonl", "--out", "out.jsonl"), "continues where it stopped"),
        ("verl_pivot.diagnosis.installation", ("doctor",), "begins again from the start"),
    ],
)
def test_ctrl_c_while_modules_are_imported_gives_one_line(module: str, words: tuple[str, ...], how: str) -> None:
    code = INTERRUPTED_IMPORT.format(module=module, words=words)

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=MINIMAL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (130, AGAIN.format(how))


def test_the_installed_command_starts_there() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    assert project["scripts"] == {"verl-pivot": "verl_pivot.start:main"}
