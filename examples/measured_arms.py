"""Evaluations and training dumps of all units -> a table of measures, a plot over training steps, and summary.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.comparison import (
    AnsweredT,
    HeldOutUnit,
    difference_as_json,
    draw_curve,
    gain,
    shown_difference,
    trained_arms,
)
from verl_pivot.statistics import PairedDifference
from verl_pivot.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredArm:
    """One unit on the held-out rows."""

    arm: str
    seed: int
    values: Mapping[str, float]
    """{measure: value}"""
    over_baseline: PairedDifference | None
    """Over the baseline of the seed, on the same rows; None for itself, and where that was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport(Generic[AnsweredT]):
    """What a study reports of its arms."""

    arms: Sequence[str]
    """Names of all arms, in the order of the table."""
    measures: Mapping[str, Callable[[Sequence[AnsweredT]], float]]
    """{name: mean over trajectories}"""
    baseline: str
    """Arm that the others are compared with."""
    compared: str
    """Heading of the difference."""
    title: str
    """Title of the table."""
    plot: str
    """Name of the plot's file."""

    def rows(self, results: Sequence[HeldOutUnit[AnsweredT]]) -> list[MeasuredArm]:
        """One row for each unit, in the order of arms and seeds."""
        before = {each.seed: each.held_out for each in results if each.arm == self.baseline}
        return [
            MeasuredArm(
                arm=each.arm,
                seed=each.seed,
                values={name: measure(each.held_out) for name, measure in self.measures.items()},
                over_baseline=gain(before[each.seed], each.held_out)
                if each.arm != self.baseline and each.seed in before
                else None,
            )
            for each in sorted(results, key=lambda each: (self.arms.index(each.arm), each.seed))
        ]

    def write(self, results: Sequence[HeldOutUnit[AnsweredT]], gaps: Sequence[str], folder: Path) -> None:
        """Write summary.json, and the plot if anything was trained.

        Args:
            results: What the units gave.
            gaps: Sentences about what is missing.
            folder: Folder for both.
        """
        found: list[Json] = [
            {"arm": row.arm, "seed": row.seed, **row.values, self.compared: difference_as_json(row.over_baseline)}
            for row in self.rows(results)
        ]
        (folder / "summary.json").write_text(json.dumps({"rows": found, "gaps": [*gaps]}, indent=1) + "\n")
        trained = trained_arms(results)
        if not trained:
            return
        figure, panels = plt.subplots(
            1, len(self.measures), figsize=(4 * len(self.measures) + 1, 4), layout="constrained"
        )
        for panel, (name, measure) in zip(panels, self.measures.items(), strict=True):
            for arm, units in trained.items():
                draw_curve(panel, measure, arm, [each.training for each in units])
            panel.set(xlabel="training step", title=name)
        panels[0].legend()
        figure.savefig(folder / self.plot, dpi=110)
        plt.close(figure)

    def show(self, results: Sequence[HeldOutUnit[AnsweredT]], gaps: Sequence[str], console: Console) -> None:
        """Print the table, and what is missing."""
        table = Table(title=self.title, title_justify="left")
        for column in ("arm", "seed", *self.measures, self.compared):
            table.add_column(column, overflow="fold")
        for row in self.rows(results):
            values = (f"{value:.2f}" for value in row.values.values())
            table.add_row(row.arm, str(row.seed), *values, shown_difference(row.over_baseline))
        console.print(table)
        for gap in gaps:
            console.print(gap, highlight=False)
