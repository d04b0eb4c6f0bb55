"""`verl-pivot sandbox bench`: measures the sandbox -> a table of figures beside their targets, and a JSON file."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.sandbox.bench.run import BenchReport

HANDED_FILE = "VERL_PIVOT_SANDBOX_HANDED_FILE"
"""Environment variable with the descriptor of the open file of --json, by which a benchmark that root started passes
the file on when it restarts as an ordinary user."""


def bench_command(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Run only this part; repeatable: science, bare, warm, http, calls, sleepers, sessions, notebooks, "
                "hostile, soak."
            )
        ),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Make a short trial run; its figures are not reliable.")] = False,
    num_calls: Annotated[int | None, typer.Option(min=1, help="Programs submitted at once; 45,000 by default.")] = None,
    soak: Annotated[
        int | None, typer.Option(min=1, help="Mixed programs to run; by default 10,000, or 300 with --quick.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the mix of programs.")] = 0,
) -> None:
    """Compare the sandbox with its targets for two cores. A missed target is not an error.

    Example: verl-pivot sandbox bench --json bench.json
    """
    from verl_pivot.sandbox.bubblewrap.privileges import drop_root

    json_fd = None if json_file is None else _opened(json_file)
    drop_root()
    from rich.console import Console

    from verl_pivot.sandbox.bench.harness import QUICK, BenchSizes
    from verl_pivot.sandbox.bench.run import run_bench

    sizes = QUICK if quick else BenchSizes()
    sizes = replace(sizes, num_calls=num_calls or sizes.num_calls, num_soak=soak or sizes.num_soak)
    report = run_bench(sizes, only or [], seed=seed, console=Console(stderr=True))
    _print(report)
    if json_fd is not None:
        with open(json_fd, "w", encoding="utf-8") as file:
            file.write(json.dumps(report.as_json(), indent=1) + "\n")
    if not report.is_complete:
        raise typer.Exit(1)


def _opened(path: Path) -> int:
    """Open the file before anything is measured. A file that root opens stays open when the process drops root."""
    from verl_pivot.sandbox.bubblewrap.privileges import is_root

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


def _print(report: "BenchReport") -> None:
    from verl_pivot.commands.tables import table_console
    from verl_pivot.sandbox.bench.report import table

    console = table_console()
    console.print(table(report.rows, report.title))
