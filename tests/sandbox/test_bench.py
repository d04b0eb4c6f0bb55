"""`verl-pivot sandbox bench`: its rows and report, and one small run of every part."""

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.support.paths import ROOT
from tests.support.sandbox_machine import needs_sandbox
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bench.harness import QUICK, BenchSizes
from verl_pivot.sandbox.bench.hostile import BOMBS
from verl_pivot.sandbox.bench.report import (
    BenchRow,
    BenchTarget,
    at_least,
    at_most,
    median,
    median_ratio,
    number,
    percentile,
    table,
)
from verl_pivot.sandbox.bench.run import PARTS, run_bench
from verl_pivot.sandbox.bench.soak import KINDS, draw

QUICK_SECONDS = 500.0


def make_row(
    value: float | None = 1.0, *, target: BenchTarget | None = None, unit: str = "", note: str = ""
) -> BenchRow:
    return BenchRow(part="bare", name="calls", value=value, target=target, unit=unit, note=note)


def test_a_target_is_reached_at_its_bound_and_beyond() -> None:
    reached = [
        make_row(value, target=target).is_reached for value in (2.9, 3.0, 3.1) for target in (at_most(3), at_least(3))
    ]

    assert reached == [True, False, True, True, False, True]


def test_a_value_without_a_target_neither_reaches_nor_misses_it() -> None:
    assert make_row().is_reached is None


def test_a_value_that_could_not_be_measured_does_not_reach_its_target() -> None:
    assert make_row(None).is_reached is False


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]

    assert [percentile(values, share) for share in (0.0, 0.2, 0.21, 0.5, 0.99, 1.0)] == [1.0, 1.0, 2.0, 3.0, 5.0, 5.0]


@given(
    st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=50), st.floats(min_value=0.01, max_value=1.0)
)
def test_at_least_the_share_does_not_exceed_its_percentile(values: list[float], share: float) -> None:
    found = percentile(values, share)

    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


def test_a_load_that_comes_and_goes_cancels_out_of_a_ratio_of_rounds() -> None:
    assert median([100.0, 10.0, 50.0]) == 50.0
    assert median_ratio([100.0, 10.0, 50.0], [20.0, 2.0, 10.0]) == 5.0


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0, 45_000, 12.345, 1234.56, 0.01234)] == [
        "0",
        "45,000",
        "12.3",
        "1,235",
        "0.0123",
    ]


def test_the_table_names_each_part_once_and_marks_what_is_missed() -> None:
    shown = io.StringIO()
    Console(width=120, file=shown).print(
        table([make_row(2.0, target=at_least(3), unit="x"), make_row(None, note="broken")], "title")
    )
    lines = [line.split("\u2502") for line in shown.getvalue().splitlines() if "calls" in line]

    assert [[cell.strip() for cell in line[1:-1]] for line in lines] == [
        ["bare", "calls", "2 x", ">= 3 x", "NO", ""],
        ["", "calls", "-", "", "NO", "broken"],
    ]


def test_an_unknown_part_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="unknown part 'speed' of the bench; use science, bare, warm, http"):
        run_bench(QUICK, ["speed"], seed=0, console=Console())


def test_a_soak_runs_each_kind_once_and_then_by_weight() -> None:
    names = [name for name, _ in draw(KINDS, 10_000, random.Random(0))]

    assert names[: len(KINDS)] == list(KINDS)
    assert len(names) == 10_000
    assert names.count("ok") > names.count("science") > names.count("stdin") > names.count("javascript")


def test_the_default_sizes_are_those_that_the_targets_are_stated_for() -> None:
    sizes = BenchSizes()

    assert (sizes.num_calls, sizes.num_clients, sizes.num_sleepers, sizes.num_soak) == (45_000, 64, 1000, 10_000)
    assert (sizes.num_honest, sizes.num_hostile, sizes.num_notebooks) == (200, 32, 256)


COMPARISON = (
    "bubblewrap per call",
    "zygote backend",
    "zygote / bubblewrap",
    "p50 of a call",
    "p50 of a bare fork",
    "call / bare fork",
)
ROWS = {
    "science": COMPARISON,
    "bare": COMPARISON,
    "warm": (
        "sympy: factor, solve or simplify",
        "sympy: all three in each program",
        *(f"{name}: without / with warm-up" for name in ("sympy", "numpy", "pandas", "datetime")),
    ),
    "http": tuple(
        f"{name}: {what}"
        for name in ("bare", "science")
        for what in ("backend in process", "over HTTP", "HTTP / in process")
    ),
    "calls": (
        "time until the last answer",
        "correct answers",
        "calls lost or run twice",
        "peak memory of the service",
        "peak memory of the lanes",
        "queue time, p50 of results",
        "setup time, p50 of results",
        "run time, p50 of results",
        "caller's waiting time, p50",
        "results that report more time than the caller waited",
        "share of the waiting time that results report",
    ),
    "sleepers": ("100 that sleep 1 s", "correct answers"),
    "sessions": ("cell over the client, p50", "fork over the client, p50", "two processes and a pipe"),
    "notebooks": (
        "call over the function's own time, p50",
        "wrong answers",
        "sessions, tasks, descriptors and processes left",
    ),
    "hostile": (
        "idle p99",
        *(f"p99 beside 8 x {name}" for name in BOMBS),
        "worst ratio",
        "honest calls without the right result",
    ),
    "soak": (
        "executions",
        "executions with an unexpected end",
        "more descriptors of the service",
        "more descriptors of the lanes",
        "more processes",
        "more mounts",
        "memory of the service",
        "memory of the lanes",
    ),
}


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user may enter."""
    with TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run_quick(part: str, report: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "verl_pivot.cli", "sandbox", "bench", "--quick", "--only", part]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*command, "--json", str(report), *more],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=QUICK_SECONDS,
    )


LONG_PARTS = ("science", "warm", "http", "hostile", "soak")
"""Parts that take longest: together two minutes on two cores."""


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=[pytest.mark.soak] if part in LONG_PARTS else []) for part in PARTS]
)
def test_every_row_is_measured_and_in_the_file(part: str) -> None:
    with open_folder() as folder:
        done = run_quick(part, folder / "bench.json", "--num-calls", "200", "--soak", "50")
        report = json.loads((folder / "bench.json").read_text() or "{}")

    assert done.returncode == 0, done.stderr + done.stdout
    assert [row["name"] for row in report["rows"]] == list(ROWS[part])
    assert all(row["value"] is not None and row["part"] == part for row in report["rows"])
    assert "targets reached, on" in done.stdout
    if part == "soak":
        more = {row["name"]: row["value"] for row in report["rows"][2:6]}
        del more["more descriptors of the lanes"]  # a lane keeps up to two idle networks, three descriptors each
        assert set(more.values()) == {0}


@needs_sandbox
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured() -> None:
    with open_folder() as folder:
        done = run_quick("science", folder / "missing" / "bench.json")

    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be written: No such file or directory; choose another file" in done.stderr
