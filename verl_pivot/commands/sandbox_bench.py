"""Command `verl-pivot sandbox bench`: the figures that the sandbox must reach -> a table, and JSON."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.benchmarks.bench import Report

HANDED_FILE = "VERL_PIVOT_SANDBOX_HANDED_FILE"
"""Environment: from a bench of root to the ordinary user's that it becomes, the open file of --json."""


def bench_command(
    only: Annotated[
        list[str] | None,
        typer.Option(help="science, bare, http, calls, sleepers, sessions, hostile or soak; repeatable."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="A smoke run in small numbers, which are not to be quoted.")] = False,
    num_calls: Annotated[int | None, typer.Option(min=1, help="Submitted at once; 45,000 in full.")] = None,
    soak: Annotated[int | None, typer.Option(min=1, help="Mixed executions; 10,000 in full, 300 with --quick.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there too.")] = None,
    seed: Annotated[int, typer.Option(help="Of the mix of executions.")] = 0,
) -> None:
    """Measure what the sandbox must reach on two cores; a target that is missed is shown, and is no error.

    Example: verl-pivot sandbox bench --json bench.json
    """
    from verl_pivot.node.privileges import drop_root

    json_fd = None if json_file is None else _opened(json_file)
    drop_root()
    from rich.console import Console

    from verl_pivot.benchmarks.bench import run_bench
    from verl_pivot.benchmarks.bench_stage import QUICK, Sizes

    sizes = QUICK if quick else Sizes()
    sizes = replace(sizes, num_calls=num_calls or sizes.num_calls, num_soak=soak or sizes.num_soak)
    report = run_bench(sizes, only or [], seed=seed, console=Console(stderr=True))
    _print(report)
    if json_fd is not None:
        with open(json_fd, "w", encoding="utf-8") as file:
            file.write(json.dumps(report.as_json(), indent=1) + "\n")
    if not report.is_complete:
        raise typer.Exit(1)


def _opened(path: Path) -> int:
    """A descriptor that outlives the loss of root; opened first, so that nothing is measured in vain."""
    from verl_pivot.node.privileges import is_root

    handed = os.environ.pop(HANDED_FILE, "")
    if handed:
        return int(handed)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except OSError as error:
        raise ConfigError(f"--json {path} cannot be written: {error.strerror}; choose another file") from error
    if is_root():
        os.set_inheritable(fd, True)
        os.environ[HANDED_FILE] = str(fd)
    return fd


def _print(report: "Report") -> None:
    from rich.console import Console

    from verl_pivot.benchmarks.bench_report import table

    console = Console(width=None if Console().is_terminal else 160)
    console.print(table(report.rows, report.title))
