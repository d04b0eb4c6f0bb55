"""Time and memory of `verl-pivot inspect` for many rollouts: first screen, filters, word search, keys; in both views.

Run by `make bench-inspect`, or with other sizes by `python -m benchmarks.bench_inspect --help`. The command runs as a
user starts it, and gets requests over HTTP; keys are pressed in Chromium if it is installed.
"""

import json
import os
import pty
import random
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import psutil
import typer
from rich.table import Table

from tests.support.browser import chromium
from tests.support.dumped_runs import make_line, write_run
from verl_pivot.commands.tables import table_console
from verl_pivot.sandbox.bench.processes import status_bytes

WORDS = ("search", "brewery", "founded", "year", "town", "born", "answer", "tool", "call", "result", "the", "of", "is")


def main(
    rollouts: Annotated[int, typer.Option(min=100, help="Rollouts of the run.")] = 100_000,
    per_step: Annotated[int, typer.Option(min=10, help="Rollouts per step.")] = 1_000,
    repeats: Annotated[int, typer.Option(min=1, help="Requests of each kind; medians are shown.")] = 11,
    keys: Annotated[int, typer.Option(min=0, help="Keys pressed in Chromium; 0 skips this part.")] = 1_000,
) -> None:
    """Print seconds and memory for a run of generated rollouts."""
    table = Table(title=f"verl-pivot inspect, {rollouts:,} rollouts")
    table.add_column("what")
    table.add_column("measured", justify="right")
    with TemporaryDirectory() as name:
        folder = write_run(Path(name) / "run", {})
        size = generate(folder, rollouts, per_step)
        table.add_row("dumps", f"{size / 1e6:,.0f} MB")
        began = time.perf_counter()
        with inspecting(folder) as (url, process):
            table.add_row("address printed", f"{time.perf_counter() - began:.2f} s")
            ask = asking(url)
            while not ask("ordered")["ids"]:
                time.sleep(0.01)
            ask("rows", ids=",".join(map(str, range(50))))
            table.add_row(
                "first 50 rollouts listed, from the start of the command", f"{time.perf_counter() - began:.2f} s"
            )
            while ask("run")["num_unread"]:
                time.sleep(0.1)
            used = psutil.Process(process.pid).cpu_times()
            table.add_row(
                "all rollouts listed", f"{time.perf_counter() - began:.2f} s, {used.user + used.system:.2f} s of CPU"
            )
            for what, question in questions(ask, rollouts).items():
                table.add_row(what, f"{median_ms(repeats, question):.0f} ms")
            table.add_row("search for a rare word", f"{median_ms(1, lambda: ask('ordered', words='zebra')):.0f} ms")
            table.add_row("peak memory", f"{status_bytes(process.pid, 'VmHWM') / 2**20:.0f} MiB")
            if keys and shutil.which("chromium-headless-shell"):
                table.add_row(*scrolled(url, keys))
        for what, measured in in_terminal(folder, repeats):
            table.add_row(what, measured)
    table_console().print(table)


def in_terminal(folder: Path, repeats: int) -> list[tuple[str, str]]:
    """Rows about `--terminal` in a terminal of 80 x 24: seconds to the first rollouts, milliseconds per key."""
    began = time.perf_counter()
    program, terminal = pty.fork()
    if program == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="24")
        os.execv(sys.executable, [sys.executable, "-m", "verl_pivot.cli", "inspect", str(folder), "--terminal"])
    try:
        drawn = b""
        while b"accepted" not in drawn:
            drawn += os.read(terminal, 1 << 16)
        first = time.perf_counter() - began
        read_until_quiet(terminal, seconds=5.0)  # all dumps are read then: their number is redrawn every second
        waits = [ms_to_draw(terminal, key) for key in (b"j", b"n", b"\x1b[6~") for _ in range(repeats)]
    finally:
        os.kill(program, signal.SIGKILL)
        os.waitpid(program, 0)
        os.close(terminal)
    return [
        ("terminal: first rollouts, from the start of the command", f"{first:.2f} s"),
        ("terminal: a key, median and longest", f"{statistics.median(waits):.0f} and {max(waits):.0f} ms"),
    ]


def ms_to_draw(terminal: int, key: bytes) -> float:
    """Milliseconds from a key to the last bytes that are drawn for it."""
    began = time.perf_counter()
    os.write(terminal, key)
    os.read(terminal, 1 << 16)
    return 1000 * (read_until_quiet(terminal, seconds=0.3) - began)


def read_until_quiet(terminal: int, seconds: float) -> float:
    """Read the terminal until nothing comes for `seconds`; returns the time of the last bytes."""
    last = time.perf_counter()
    while select.select([terminal], [], [], seconds)[0]:
        os.read(terminal, 1 << 16)
        last = time.perf_counter()
    return last


def generate(folder: Path, number: int, per_step: int) -> int:
    """Write dumps of rollouts with 1 to 4 turns; returns their size in bytes."""
    draw, size = random.Random(0), 0
    for step in range(1, number // per_step + 1):
        lines = []
        for at in range(per_step):
            texts = [" ".join(draw.choices(WORDS, k=60)) for _ in range(draw.randint(1, 4))]
            seen = [[" ".join(draw.choices(WORDS, k=40))] for _ in texts]
            texts[0] += " zebra" if draw.random() < 1e-4 else ""
            score = draw.choice([0.0, 1.0])
            lines.append(make_line(f"g{step}-{at // 8}_{at % 8}_0", score, texts, observations=seen, step=step))
        write_run(folder, {step: lines})
        size += sum(map(len, lines))
    return size


@contextmanager
def inspecting(folder: Path) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    """Run the command on a folder; yields its address and its process."""
    command = [sys.executable, "-m", "verl_pivot.cli", "inspect", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        try:
            yield found.group(), process
        finally:
            process.terminate()


def asking(url: str) -> Callable[..., Any]:
    """A function that sends a request to the server, such as ask("rows", ids="1,2")."""
    base, token = url.split("/?token=")
    client = httpx.Client(base_url=base, headers={"X-Inspect-Token": token}, timeout=60.0)

    def ask(path: str, **query: str) -> Any:
        answer = client.get(f"/api/{path}", params=query)
        answer.raise_for_status()
        return json.loads(answer.content)

    return ask


def questions(ask: Callable[..., Any], number: int) -> dict[str, Callable[[], object]]:
    ids = ",".join(str(number // 2 + at) for at in range(120))
    place = {"run": "0", "file": "rollouts/pivot/1.jsonl", "line": "7"}
    return {
        "next page of 120": lambda: ask("rows", ids=ids),
        "list, filtered and sorted": lambda: ask(
            "ordered", score_to="0.5", sort="sampled_tokens", is_descending="true"
        ),
        "list by a condition in SQL": lambda: ask("ordered", condition="num_turns > 2 AND score < 1"),
        "a rollout opened": lambda: ask("rollout", **place),
    }


def median_ms(number: int, question: Callable[[], object]) -> float:
    spent = []
    for _ in range(number):
        began = time.perf_counter()
        question()
        spent.append(1000 * (time.perf_counter() - began))
    return statistics.median(spent)


def scrolled(url: str, keys: int) -> tuple[str, str]:
    """Row about many presses of `j` in the list of rollouts: late frames, and elements in the page."""
    frames = "window.frames_ = []; const each = (now) => { frames_.push(now); requestAnimationFrame(each) }; each(0)"
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"{url}#/rollouts")
        page.wait_for_selector(".row.selected .cell.number")
        page.evaluate(frames)
        for _ in range(keys):
            page.keyboard.press("j")
        times = page.evaluate("frames_.slice(1)")
        nodes = page.evaluate("document.querySelectorAll('*').length")
        at = page.locator(".row.selected").get_attribute("aria-rowindex")
    late = statistics.fmean(after - before > 34 for before, after in pairwise(times))
    return f"{keys} keys pressed, to line {int(at or 0) - 1}", f"{100 * late:.1f} % of frames late, {nodes} elements"


if __name__ == "__main__":
    typer.run(main)
