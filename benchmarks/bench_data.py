"""What the data stage takes at full size: import and select of synthetic trajectories, time and memory, as a table.

python -m benchmarks.bench_data [NUM_TRAJECTORIES [FOLDER]]: 300,000 of 20 turns unless said otherwise.
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

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.synthetic_trajectories import profile_header, profile_lines_of, rows_text
from verl_pivot.data.files import in_chunks, read_rows
from verl_pivot.data.parallel import map_in_order, num_cores

_ROWS_AT_ONCE = 500
_MINUTES = 20
_GIB = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    seconds: float
    peak_gib: float
    """Proportional set size of the command and its processes together, at most."""


def measure(*command: object) -> Measured:
    """Run a command of verl-pivot; its output goes to this one's."""
    begin = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "verl_pivot.cli", *map(str, command)])
    peak, ended = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, peak, ended))
    watcher.start()
    try:
        if process.wait():
            raise SystemExit(f"{command} ended with {process.returncode}")
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
    with console.status(f"writing {num_trajectories} trajectories"), (folder / "in.jsonl").open("w") as file:
        numbers = [
            range(first, min(first + _ROWS_AT_ONCE, num_trajectories))
            for first in range(0, num_trajectories, _ROWS_AT_ONCE)
        ]
        for text in map_in_order(rows_text, numbers, workers=num_cores()):
            file.write(text)


def write_profile(folder: Path, console: Console) -> None:
    trajectories = folder / "trajectories.jsonl"
    with console.status("writing their profile"), (folder / "profile.jsonl").open("w") as file:
        file.write(profile_header(trajectories))
        for text in map_in_order(profile_lines_of, in_chunks(read_rows(trajectories)), workers=num_cores()):
            file.write(text)


def main(num_trajectories: int = 300_000, folder: str | None = None) -> None:
    console = Console()
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        inside = partial(Path, place)
        write_inputs(place, num_trajectories, console)
        imported = measure("import", inside("in.jsonl"), "--out", inside("trajectories.jsonl"))
        write_profile(place, console)
        options = ("--profile", inside("profile.jsonl"), "--max-prompt-tokens", 0)
        selected = measure("select", inside("trajectories.jsonl"), *options, "--out", inside("pivots.parquet"))
        sizes = {path.name: path.stat().st_size / 2**30 for path in sorted(place.iterdir())}
    table = Table(
        title=f"{num_trajectories} trajectories of 20 turns, {num_cores()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for column in ("stage", "minutes", "trajectories/s", "peak GiB"):
        table.add_column(column, justify="right" if column != "stage" else "left")
    both = Measured(seconds=imported.seconds + selected.seconds, peak_gib=max(imported.peak_gib, selected.peak_gib))
    for stage, measured in (("import", imported), ("select", selected), ("both", both)):
        rate = num_trajectories / measured.seconds
        table.add_row(stage, f"{measured.seconds / 60:.1f}", f"{rate:.0f}", f"{measured.peak_gib:.2f}")
    table.add_section()
    table.add_row("target for 300,000", f"{_MINUTES}", f"{300_000 / _MINUTES / 60:.0f}", f"{_GIB}")
    console.print(table)
    console.print("; ".join(f"{name} {size:.2f} GiB" for name, size in sizes.items()))


if __name__ == "__main__":
    main(*(int(argument) if argument.isdigit() else argument for argument in sys.argv[1:]))  # type: ignore[arg-type]
