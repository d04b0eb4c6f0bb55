"""examples.quickstart.report: two evaluations -> a table with the intervals of base, trained policy and gain."""

import io
import json
from pathlib import Path

from rich.console import Console

from verl_pivot.local.environment import activate_shims

activate_shims()  # before transformers, which looks for torchvision

from examples.quickstart.evaluate import Accuracy, Evaluation  # noqa: E402
from examples.quickstart.report import Summary, show, write  # noqa: E402


def evaluation(*outcomes: bool) -> Evaluation:
    accuracy = Accuracy(outcomes=outcomes)
    return Evaluation(turns=accuracy, tasks=accuracy, tasks_by_family={"count": accuracy})


SUMMARY = Summary(
    seed=3,
    base=evaluation(False, False, False, True),
    trained=evaluation(True, True, True, True),
    seconds={"training": 61.2},
    steps=[{"step": 1.0, "critic/score/mean": 0.5}],
)


def test_the_table_shows_the_gain_with_its_interval() -> None:
    """The base policy solves one of four tasks, the trained one all: paired bootstrap draws gain 25 to 100 points."""
    console = Console(file=io.StringIO(), width=120)

    show(SUMMARY, console)

    assert isinstance(console.file, io.StringIO)
    (row,) = (line for line in console.file.getvalue().splitlines() if "whole tasks" in line)
    assert [cell.strip() for cell in row.split("│")[2:5]] == ["25% [5, 70]", "100% [51, 100]", "+75 [+25, +100]"]


def test_the_summary_and_the_plot_are_written(tmp_path: Path) -> None:
    write(SUMMARY, tmp_path)

    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["base"]["tasks"]["num_right"] == 1
    assert written["trained"]["tasks"]["value"] == 1.0
    assert (tmp_path / "quickstart.png").stat().st_size > 10_000
