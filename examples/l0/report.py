"""Evaluations and training dumps of all units -> a table with intervals, plots over training steps, summary.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.comparison import (
    UnitResult,
    difference_as_json,
    draw_curve,
    gain,
    shown_difference,
    trained_arms,
)
from examples.l0.measures import MEASURES, Played, mean
from examples.l0.training import SCAFFOLD
from examples.world.questions import KINDS, WorldQuestion
from verl_pivot.statistics import PairedDifference
from verl_pivot.types import JsonObject

Result = UnitResult[Played]
"""Results of one unit; the scaffold has no training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results of one unit on the held-out questions."""

    arm: str
    seed: int
    means: dict[str, float]
    """{measure: mean over the questions}"""
    unseen: float
    """EM on the kind of question that training never asked."""
    over_scaffold: PairedDifference | None
    """EM minus the scaffold's, on the questions that both answered; None for the scaffold, or if it was not run."""
    num_questions: int
    """Number of questions whose trajectories were decided."""

    def as_dict(self) -> JsonObject:
        return {
            "arm": self.arm,
            "seed": self.seed,
            "num_questions": self.num_questions,
            **self.means,
            "EM on the unseen kind": self.unseen,
            "EM over the scaffold": difference_as_json(self.over_scaffold),
        }


def rows(results: Sequence[Result], questions: Mapping[str, WorldQuestion]) -> list[Row]:
    """A row for each unit, in order."""
    scaffolds = {each.seed: each.held_out for each in results if each.arm == SCAFFOLD}
    return [_row(each, scaffolds.get(each.seed), questions) for each in results]


def _row(result: Result, scaffold: Sequence[Played] | None, questions: Mapping[str, WorldQuestion]) -> Row:
    unseen = [each for each in result.held_out if KINDS[questions[each.prompt_id].kind].is_held_out]
    return Row(
        arm=result.arm,
        seed=result.seed,
        means={name: mean(name, result.held_out) for name in MEASURES},
        unseen=mean("EM", unseen) if unseen else float("nan"),
        over_scaffold=None if scaffold is None or result.arm == SCAFFOLD else gain(scaffold, result.held_out),
        num_questions=len(result.held_out),
    )


def write(results: Sequence[Result], found: Sequence[Row], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json, and l0.png if anything was trained."""
    content = {"units": [each.as_dict() for each in found], "gaps": list(gaps)}
    (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    if any(each.training for each in results):
        draw(results, folder / "l0.png")


def show(found: Sequence[Row], gaps: Sequence[str], console: Console) -> None:
    """Print the table, and what is missing."""
    table = Table(title="Held-out questions, one sampled answer each", title_justify="left")
    for column in ("arm", "seed", *MEASURES, "EM, unseen kind", "EM over the scaffold"):
        table.add_column(column)
    for row in found:
        means = (f"{row.means[name]:.3f}" for name in MEASURES)
        table.add_row(row.arm, str(row.seed), *means, f"{row.unseen:.3f}", shown_difference(row.over_scaffold))
    console.print(table)
    for gap in gaps:
        console.print(gap, highlight=False)


def draw(results: Sequence[Result], path: Path) -> None:
    """Plot each measure over training steps: the mean over seeds, and the range from lowest to highest seed."""
    arms = trained_arms(results)
    figure, panels = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    for panel, name in zip(panels.flat, MEASURES, strict=True):
        for arm, units in arms.items():
            draw_curve(panel, partial(mean, name), arm, [each.training for each in units])
        panel.set(xlabel="training step", title=name)
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(arms))
    figure.savefig(path, dpi=120)
    plt.close(figure)
