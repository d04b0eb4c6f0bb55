"""Seconds and memory of `verl-pivot report` for a long training, and the size of the file that it writes.

Run by `make bench-inspect`, or with other sizes by `python -m benchmarks.bench_report --help`. The command runs as a
user starts it.
"""

import random
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import psutil
import typer
from rich.table import Table

from benchmarks.bench_inspect import generate
from tests.support.dumped_runs import write_run
from verl_pivot.commands.tables import table_console

NUM_METRICS = 60
"""Metrics of each step; verl logs about as many."""


def main(
    steps: Annotated[int, typer.Option(min=1, help="Steps of the run.")] = 1_000,
    per_step: Annotated[int, typer.Option(min=10, help="Rollouts per step.")] = 500,
) -> None:
    """Print seconds, memory and bytes for a run of generated rollouts."""
    table = Table(title=f"verl-pivot report, {steps:,} steps, {steps * per_step:,} rollouts")
    table.add_column("what")
    table.add_column("measured", justify="right")
    with TemporaryDirectory() as name:
        folder, out = Path(name) / "run", Path(name) / "report.html"
        write_run(folder, {}, metrics(steps))
        size = generate(folder, steps * per_step, per_step)
        table.add_row("dumps", f"{size / 1e6:,.0f} MB")
        for what, measured in reported(folder, out):
            table.add_row(what, measured)
    table_console().print(table)


def metrics(steps: int) -> list[dict[str, Any]]:
    """[steps] lines of metrics as a logger writes them; each series rises, with noise."""
    draw = random.Random(0)
    names = [
        "critic/score/mean",
        "actor/entropy",
        "timing_s/step",
        *(f"generated/{at}" for at in range(NUM_METRICS - 3)),
    ]
    return [{"step": step, **{name: step / steps + draw.random() for name in names}} for step in range(1, steps + 1)]


def reported(folder: Path, out: Path) -> list[tuple[str, str]]:
    """Run the command; returns rows about its seconds, its memory and its file.

    Raises:
        CalledProcessError: If the command fails; what it printed is on the terminal.
    """
    command = [sys.executable, "-m", "verl_pivot.cli", "report", str(folder), "--out", str(out)]
    began = time.perf_counter()
    peak = 0
    with psutil.Popen(command) as process:
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                peak = max(peak, process.memory_info().rss)
            time.sleep(0.02)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return [
        ("time of the command", f"{seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU"),
        ("peak memory, sampled every 20 ms", f"{peak / 2**20:.0f} MiB"),
        ("size of the file", f"{out.stat().st_size / 1e6:.2f} MB"),
    ]


if __name__ == "__main__":
    typer.run(main)
