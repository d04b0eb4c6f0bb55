"""Help of `verl-pivot` and of every command: it imports no slow packages, and shows an example of each command."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from tests.support.paths import ROOT
from verl_pivot import __version__
from verl_pivot.cli import app

SLOW = (
    *("torch", "ray", "verl", "sglang", "transformers", "hydra", "omegaconf"),
    *("pyarrow", "duckdb", "matplotlib", "numpy", "scipy", "sqlglot", "sympy"),
    *("httpx", "aiohttp", "uvloop", "jsonschema", "jinja2", "yaml", "msgspec"),
    *("packaging", "asyncio", "multiprocessing", "concurrent.futures.process"),
)
"""Packages whose import is slow, or that only some commands need."""


def commands(group: object = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command, such as ("sandbox", "serve")."""
    group = typer.main.get_command(app) if group is None else group
    for name, command in getattr(group, "commands", {}).items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def imported_for(*arguments: tuple[str, ...], packages: tuple[str, ...]) -> str:
    """List, as a text, of those `packages` that are imported when these pages of help are shown."""
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from verl_pivot.cli import app\n"
        f"results = [CliRunner().invoke(app, words) for words in {[list(words) for words in arguments]!r}]\n"
        "assert [result.exit_code for result in results] == [0] * len(results), results\n"
        f"print([name for name in {packages!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_help_of_all_commands_imports_nothing_slow() -> None:
    assert imported_for(("--help",), packages=(*SLOW, "pydantic")) == "[]"


def test_the_help_of_each_command_imports_nothing_slow() -> None:
    """pydantic is not in the list, since typer itself imports it for the options of a command."""
    pages = [(*words, "--help") for words in commands()]

    assert len(pages) == 40
    assert imported_for(*pages, packages=SLOW) == "[]"


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_each_command_shows_an_example_of_itself(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).stdout

    assert "Example" in shown
    assert f"verl-pivot {' '.join(words)}" in shown.partition("Example")[2]


@pytest.mark.parametrize(
    "words", [(), ("sandbox",), ("route",), ("judge",), ("process",), ("search",), *commands()], ids=" ".join
)
def test_the_help_fits_80_columns_and_cuts_no_name(words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*words, "-h"], env={"COLUMNS": "80"}).stdout

    _, *lines = shown.splitlines()
    assert [line for line in lines if len(line) > 80 or line.endswith("...") or "\u2026" in line] == []
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    names = [name for parameter in command.params for name in parameter.opts if name.startswith("--")]
    assert [name for name in names if name not in shown] == []


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout == f"verl-pivot {__version__}\n"


def test_a_shell_can_complete_commands() -> None:
    variables = {"_VERL_PIVOT_COMPLETE": "complete_bash", "COMP_WORDS": "verl-pivot pro", "COMP_CWORD": "1"}

    assert CliRunner().invoke(app, [], env=variables, prog_name="verl-pivot").stdout.split() == ["profile", "process"]
