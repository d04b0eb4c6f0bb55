"""Writes docs/cli.md, the help of every command, from the commands themselves; docs/reference.py calls it."""

import re
from pathlib import Path

import click
import typer
from click.utils import make_default_short_help
from typer.cli import get_docs_for_click

from verl_pivot.cli import app

ROOT = Path(__file__).resolve().parents[1]
INTRODUCTION = """# Command line

Every command with its options, written by `python docs/reference.py` from the help of the commands. Each prints an
error that you can correct as one sentence and exits with code 1; after Ctrl-C the code is 130.
"""
EXAMPLES = re.compile(r"^Examples?:(.*?)(?=^\*\*Usage\*\*)", re.MULTILINE | re.DOTALL)


def page() -> str:
    """The text of docs/cli.md."""
    command = typer.main.get_command(app)
    _show_whole_sentences(command)
    made = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="verl-pivot"), name="verl-pivot")
    _, _, commands = made.partition("\n")
    text = f"{INTRODUCTION}{EXAMPLES.sub(_as_code, commands)}".replace("\b", "")  # click's mark of unwrapped lines
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _show_whole_sentences(command: click.Command) -> None:
    """Let the tables of groups have the first sentence of each command, which click cuts to the width of a terminal."""
    for each in getattr(command, "commands", {}).values():
        each.short_help = make_default_short_help(each.help or "", max_length=1000)
        _show_whole_sentences(each)


def _as_code(found: re.Match[str]) -> str:
    """Examples of a docstring as a block of code."""
    lines = [line.removeprefix("  ") for line in found[1].strip("\n").splitlines() if line.strip()]
    return "\n".join(("```console", *lines_of_shell(lines), "```", "", ""))


def lines_of_shell(lines: list[str]) -> list[str]:
    """Commands after a shell prompt; a line that continues another gets no prompt."""
    continued = [False, *(line.rstrip().endswith("\\") for line in lines)]
    return [line if goes_on else f"$ {line.strip()}" for line, goes_on in zip(lines, continued, strict=False)]


def write() -> None:
    """Write docs/cli.md."""
    (ROOT / "docs" / "cli.md").write_text(page())
