"""Time and memory of `verl-pivot import` and `select` for as many synthetic trajectories as a full data set has.

Run by `make bench-data`, or with other sizes by `python -m benchmarks.bench_data --help`.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.synthetic_trajectories import NUM_TURNS, profile_header, profile_lines_of, rows_text
from verl_pivot.commands.tables import table_console
from verl_pivot.data.files import in_chunks, read_rows
from verl_pivot.data.parallel import map_in_order, num_cores

_NUM_ROWS_AT_ONCE = 500
_TARGET_TRAJECTORIES = 300_000
_TARGET_MINUTES = 20
_TARGET_GIB = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Time and memory of one command."""

    seconds: float
    peak_gib: float
    """Largest proportional set size of the command and its processes together."""


def measure(*command: object) -> Measured:
    """Run a command of verl-pivot and measure it; SystemExit if it fails. It prints to this process's output."""
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "verl_pivot.cli", *map(str, command)])
    peak, ended = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, ended))
    watcher.start()
    try:
        if process.wait():
            raise SystemExit(f"{command} ended with exit code {process.returncode}")
    finally:
        ended.set()
        watcher.join()
    return Measured(seconds=time.monotonic() - begin, peak_gib=peak[0])


def _watch(pid: int, peak: list[float], ended: threading.Event) -> None:
    while not ended.wait(1.0):
        try:
            root = psutil.Process(pid)
            used = sum(process.memory_full_info().pss for process in [root, *root.children(recursive=True)])
        except psutil.NoSuchProcess:
            continue
        peak[0] = max(peak[0], used / 2**30)


def write_inputs(folder: Path, num_trajectories: int, console: Console) -> None:
    """Write the rows that `import` reads, as in.jsonl."""
    with console.status(f"writing {num_trajectories} trajectories"), (folder / "in.jsonl").open("w") as file:
        numbers = [
            range(first, min(first + _NUM_ROWS_AT_ONCE, num_trajectories))
            for first in range(0, num_trajectories, _NUM_ROWS_AT_ONCE)
        ]
        for text in map_in_order(rows_text, numbers, workers=num_cores()):
            file.write(text)


def write_profile(folder: Path, console: Console) -> None:
    """Write a made-up profile of trajectories.jsonl, as profile.jsonl."""
    trajectories = folder / "trajectories.jsonl"
    with console.status("writing their profile"), (folder / "profile.jsonl").open("w") as file:
        file.write(profile_header(trajectories))
        for text in map_in_order(profile_lines_of, in_chunks(read_rows(trajectories)), workers=num_cores()):
            file.write(text)


def main(
    trajectories: Annotated[
        int, typer.Option(min=1, help=f"Trajectories of {NUM_TURNS} turns; 300,000 take 15 GB of disk.")
    ] = _TARGET_TRAJECTORIES,
    folder: Annotated[
        Path | None, typer.Option(help="Existing folder for the files, which are removed at the end.")
    ] = None,
) -> None:
    """Print minutes, trajectories per second and peak memory of import and select."""
    console = table_console()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        inside = partial(Path, place)
        write_inputs(place, trajectories, console)
        imported = measure("import", inside("in.jsonl"), "--out", inside("trajectories.jsonl"))
        write_profile(place, console)
        options = ("--profile", inside("profile.jsonl"), "--max-prompt-tokens", 0)
        selected = measure("select", inside("trajectories.jsonl"), *options, "--out", inside("pivots.parquet"))
        sizes = {path.name: path.stat().st_size / 2**30 for path in sorted(place.iterdir())}
    table = Table(
        title=f"{trajectories} trajectories of {NUM_TURNS} turns, {num_cores()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for column in ("stage", "minutes", "trajectories/s", "peak GiB"):
        table.add_column(column, justify="right" if column != "stage" else "left")
    both = Measured(seconds=imported.seconds + selected.seconds, peak_gib=max(imported.peak_gib, selected.peak_gib))
    for stage, measured in (("import", imported), ("select", selected), ("both", both)):
        rate = trajectories / measured.seconds
        table.add_row(stage, f"{measured.seconds / 60:.1f}", f"{rate:.0f}", f"{measured.peak_gib:.2f}")
    table.add_section()
    target_rate = _TARGET_TRAJECTORIES / _TARGET_MINUTES / 60
    table.add_row(f"target for {_TARGET_TRAJECTORIES:,}", f"{_TARGET_MINUTES}", f"{target_rate:.0f}", f"{_TARGET_GIB}")
    console.print(table)
    console.print("; ".join(f"{name} {size:.2f} GiB" for name, size in sizes.items()))


if __name__ == "__main__":
    typer.run(main)
