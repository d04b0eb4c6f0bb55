"""Evaluations and training dumps of all units -> a table with intervals, plots over training steps, summary.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from examples.search.measures import Played, mean_em, mean_searches, split
from examples.search.training import ARMS, BASE
from verl_pivot.statistics import Interval, PairedDifference, wilson_interval
from verl_pivot.types import JsonObject

PARTS = ("taught", "untaught")
_MEASURES: Mapping[str, Callable[[Sequence[Played]], float]] = {"EM": mean_em, "searches": mean_searches}


Result = UnitResult[Played]
"""Results of one unit; the base policy has no training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """Results of one unit on the held-out questions about taught, or about untaught facts."""

    arm: str
    seed: int
    part: str
    em: float
    interval: Interval
    """Wilson's interval of EM over the questions."""
    em_over_base: PairedDifference | None
    """EM minus the base policy's; None for the base policy itself, or if it was not run."""
    searches: float
    """Mean number of searches of a trajectory."""
    searches_over_base: PairedDifference | None

    def as_dict(self) -> JsonObject:
        return {
            "arm": self.arm,
            "seed": self.seed,
            "part": self.part,
            "EM": self.em,
            "EM interval": [self.interval.low, self.interval.high],
            "EM over base": difference_as_json(self.em_over_base),
            "searches": self.searches,
            "searches over base": difference_as_json(self.searches_over_base),
        }


def rows(results: Sequence[Result], taught: frozenset[str]) -> list[PartRow]:
    """Two rows for each unit, in the order of arms and seeds."""
    base = {each.seed: split(each.held_out, taught) for each in results if each.arm == BASE}
    ordered = sorted(results, key=lambda each: (list(ARMS).index(each.arm), each.seed))
    return [
        _row(each, part, split(each.held_out, taught)[part], base.get(each.seed)) for each in ordered for part in PARTS
    ]


def _row(result: Result, part: str, played: Sequence[Played], base: Mapping[str, Sequence[Played]] | None) -> PartRow:
    before = base[part] if base is not None and result.arm != BASE else None
    return PartRow(
        arm=result.arm,
        seed=result.seed,
        part=part,
        em=mean_em(played),
        interval=wilson_interval(mean_em(played), len(played)),
        em_over_base=None if before is None else gain(before, played),
        searches=mean_searches(played),
        searches_over_base=None if before is None else gain(before, played, lambda each: each.num_searches),
    )


def write(
    results: Sequence[Result], found: Sequence[PartRow], gaps: Sequence[str], taught: frozenset[str], folder: Path
) -> None:
    """Write summary.json, and search.png if anything was trained."""
    content: JsonObject = {"rows": [each.as_dict() for each in found], "gaps": [*gaps]}
    (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    if any(each.training for each in results):
        _draw(results, taught, folder / "search.png")


def show(found: Sequence[PartRow], gaps: Sequence[str], console: Console) -> None:
    """Print the table, and what is missing."""
    table = Table(title="Held-out questions, one sampled answer each", title_justify="left")
    for column in ("arm", "seed", "facts", "EM", "EM over base", "searches", "searches over base"):
        table.add_column(column, overflow="fold")
    for row in found:
        low, high = row.interval
        table.add_row(
            row.arm,
            str(row.seed),
            row.part,
            f"{row.em:.3f} [{low:.3f}, {high:.3f}]",
            shown_difference(row.em_over_base),
            f"{row.searches:.2f}",
            shown_difference(row.searches_over_base),
        )
    console.print(table)
    for gap in gaps:
        console.print(gap, highlight=False)


def _draw(results: Sequence[Result], taught: frozenset[str], path: Path) -> None:
    """Plot both measures over training steps for taught and untaught facts: the mean over seeds, and their range."""
    arms = trained_arms(results)
    figure, panels = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    for row, (name, measure) in zip(panels, _MEASURES.items(), strict=True):
        for panel, part in zip(row, PARTS, strict=True):
            for arm, units in arms.items():
                steps = [
                    {step: split(played, taught)[part] for step, played in each.training.items()} for each in units
                ]
                draw_curve(panel, measure, arm, steps)
            panel.set(xlabel="training step", title=f"{name}, {part} facts")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(arms))
    figure.savefig(path, dpi=110)
    plt.close(figure)
