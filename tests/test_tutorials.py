"""Tutorials that run as they are written: blocks with a title are files, and commands print what their block shows."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT
from tests.support.stand_in_policy import StandIn, stand_in_policy

TUTORIALS = sorted((ROOT / "docs").glob("tutorial_*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    """A command of a page, and what the page shows below it."""

    words: str
    shown: str


def commands(block: str) -> Iterator[Command]:
    """The commands of a console block; each begins with "$ "."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        words, _, shown = part.partition("\n")
        yield Command(words, shown)


def fits(shown: str, printed: str) -> bool:
    """Whether the output is what the page shows; `...` stands for any text, and on a line of its own for any lines."""
    lines = ("(?:.*\n)*" if line == "..." else f"{_line(line)}\n" for line in shown.splitlines())
    text = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
    return re.fullmatch("".join(lines), text) is not None


def _line(shown: str) -> str:
    return re.escape(shown.rstrip()).replace(r"\.\.\.", ".*")


def run(words: str, folder: Path, variables: dict[str, str]) -> str:
    """Output of a command, which must exit with 1 if a line of the output is an error, else with 0."""
    done = subprocess.run(
        ["bash", "-c", words], cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == int("\nerror: " in f"\n{done.stdout}"), f"$ {words}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with stand_in_policy(tmp_path_factory.mktemp("policy")) as served:
        yield served


@pytest.mark.heavy
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_written_in_a_fresh_folder(page: Path, tmp_path: Path, policy: StandIn) -> None:
    variables = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path.parent),
        "COLUMNS": "100",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "POLICY": str(policy.folder),
        "POLICY_URL": policy.server.url,
    }
    for language, title, text in BLOCK.findall(page.read_text()):
        if title:
            (tmp_path / title).write_text(text)
        elif language == "console":
            for command in commands(text):
                printed = run(command.words, tmp_path, variables)
                assert fits(command.shown, printed), f"$ {command.words}\n{printed}"


def test_dots_stand_for_what_differs_and_for_nothing_else() -> None:
    assert fits("a\n...\nd ... f\n", "a\nb\nc\nd e f  \n")
    assert fits("...\nb\n", "b\n")
    assert not fits("a\n", "a\nb\n")
    assert not fits("a\n...\nc\n", "a\nb\n")
    assert not fits("", "said something")
