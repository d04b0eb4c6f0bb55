"""Evaluations and training dumps of all units -> a table of measures, a plot over training steps, and summary.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Generic

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.comparison import (
    AnsweredT,
    HeldOutUnit,
    difference_as_json,
    difference_of_means,
    draw_curve,
    means_by_question,
    shown_difference,
    trained_arms,
)
from examples.contrasts import Contrast, contrast_table, contrasted
from examples.evaluation_results import grouped
from verl_pivot.statistics import PairedDifference
from verl_pivot.types import Json

_MAX_COLUMNS = 4
"""Most panels of a plot side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredArm:
    """One arm on the held-out rows, with one seed or over several."""

    arm: str
    seeds: tuple[int, ...]
    values: Mapping[str, float]
    """{measure: value}"""
    over_baseline: PairedDifference | None
    """Mean of `em` minus the baseline's, with the same seeds and rows; None for the baseline, or if it was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport(Generic[AnsweredT]):
    """How a study reports on its arms."""

    arms: Sequence[str]
    """Names of all arms, in the order of the table."""
    measures: Mapping[str, Callable[[Sequence[AnsweredT]], float]]
    """{name: mean over trajectories}"""
    baseline: str
    """Arm that the others are compared with."""
    compared: str
    """Heading of the column with the difference from the baseline."""
    title: str
    """Title of the table."""
    plot: str
    """Name of the plot's file."""
    contrasts: Sequence[Contrast[AnsweredT]] = ()
    """Arms that are compared with each other, in a table of their own."""

    def rows(self, results: Sequence[HeldOutUnit[AnsweredT]]) -> list[MeasuredArm]:
        """One row for each unit, in the order of arms and seeds, and one over all seeds of an arm that has several."""
        units = sorted(results, key=lambda each: each.seed)
        baseline = [each for each in units if each.arm == self.baseline]
        return [self._row(group, baseline) for group in grouped(units, self.arms)]

    def _row(self, group: Sequence[HeldOutUnit[AnsweredT]], baseline: Sequence[HeldOutUnit[AnsweredT]]) -> MeasuredArm:
        seeds = tuple(each.seed for each in group)
        before = [each for each in baseline if each.seed in seeds]
        is_compared = group[0].arm != self.baseline and len(before) == len(group)
        played = [each for unit in group for each in unit.held_out]
        return MeasuredArm(
            arm=group[0].arm,
            seeds=seeds,
            values={name: measure(played) for name, measure in self.measures.items()},
            over_baseline=difference_of_means(_means(before), _means(group)) if is_compared else None,
        )

    def write(self, results: Sequence[HeldOutUnit[AnsweredT]], gaps: Sequence[str], folder: Path) -> None:
        """Write summary.json, and the plot if anything was trained.

        Args:
            results: Results of the units.
            gaps: Sentences about what is missing.
            folder: Folder for both files.
        """
        found: list[Json] = [
            {
                "arm": row.arm,
                "seeds": [*row.seeds],
                **{name: None if value != value else value for name, value in row.values.items()},
                self.compared: difference_as_json(row.over_baseline),
            }
            for row in self.rows(results)
        ]
        contrasts: list[Json] = [each.as_dict() for each in contrasted(self.contrasts, results)]
        content = {"rows": found, "contrasts": contrasts, "gaps": [*gaps]}
        (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
        trained = trained_arms(results)
        if not trained:
            return
        columns = min(len(self.measures), _MAX_COLUMNS)
        rows = ceil(len(self.measures) / columns)
        figure, grid = plt.subplots(
            rows, columns, figsize=(4 * columns + 1, 4 * rows), layout="constrained", squeeze=False
        )
        panels, unused = grid.flat[: len(self.measures)], grid.flat[len(self.measures) :]
        for panel in unused:
            panel.remove()
        for panel, (name, measure) in zip(panels, self.measures.items(), strict=True):
            for arm, units in trained.items():
                seeds = f"{len(units)} seed{'' if len(units) == 1 else 's'}"
                draw_curve(panel, measure, f"{arm} ({seeds})", [each.training for each in units])
            panel.set(xlabel="training step", title=name)
        panels[0].legend()
        figure.savefig(folder / self.plot, dpi=110)
        plt.close(figure)

    def show(self, results: Sequence[HeldOutUnit[AnsweredT]], gaps: Sequence[str], console: Console) -> None:
        """Print the table, the contrasts, and what is missing."""
        table = Table(title=self.title, title_justify="left")
        for column in ("arm", "seeds", *self.measures, self.compared):
            table.add_column(column, overflow="fold")
        for row in self.rows(results):
            values = (f"{value:.2f}" for value in row.values.values())
            table.add_row(row.arm, ", ".join(map(str, row.seeds)), *values, shown_difference(row.over_baseline))
        console.print(table)
        if found := contrasted(self.contrasts, results):
            console.print(contrast_table(found))
        for gap in gaps:
            console.print(gap, highlight=False)


def _means(units: Sequence[HeldOutUnit[AnsweredT]]) -> dict[str, float]:
    """{prompt_id: mean over the seeds, and over the samples of each}"""
    return means_by_question(each for unit in units for each in unit.held_out)
