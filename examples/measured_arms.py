"""Evaluations and training dumps of all units -> a table of measures, a plot over training steps, and summary.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
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
from verl_pivot.statistics import Interval, PairedDifference, t_interval
from verl_pivot.types import Json


def mean(values: Sequence[float]) -> float:
    """Their mean; NaN if there are none."""
    return fmean(values) if values else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredArm:
    """One arm on the held-out rows, with one seed or over several."""

    arm: str
    seeds: tuple[int, ...]
    values: Mapping[str, float]
    """{measure: value}"""
    over_baseline: PairedDifference | None
    """Over the baseline with the same seeds, on the same rows; None for itself, and where that was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast(Generic[AnsweredT]):
    """Two arms to be compared by one value of a trajectory."""

    arm: str
    over: str
    """The other arm, whose value is taken from the arm's."""
    measure: str
    """What is compared."""
    value: Callable[[AnsweredT], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrasted:
    """What a contrast came to, over the seeds that both arms have."""

    name: str
    seeds: tuple[int, ...]
    difference: PairedDifference
    """Over all seeds; its interval is over the held-out rows, for these trainings."""
    by_seed: tuple[float, ...]
    """[num_seeds]"""

    @property
    def over_trainings(self) -> Interval | None:
        """Student's t over the seeds; None with one seed."""
        return t_interval(self.by_seed) if len(self.by_seed) > 1 else None

    def as_dict(self) -> dict[str, Json]:
        over_trainings = self.over_trainings
        return {
            "contrast": self.name,
            "seeds": [*self.seeds],
            "difference": difference_as_json(self.difference),
            "by seed": [*self.by_seed],
            "interval over trainings": None if over_trainings is None else [over_trainings.low, over_trainings.high],
        }


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
    contrasts: Sequence[Contrast[AnsweredT]] = ()
    """Arms that are compared with each other, in a table of their own."""

    def rows(self, results: Sequence[HeldOutUnit[AnsweredT]]) -> list[MeasuredArm]:
        """One row for each unit, in the order of arms and seeds; behind those of an arm one over all of its seeds."""
        units = {
            arm: sorted((each for each in results if each.arm == arm), key=lambda each: each.seed) for arm in self.arms
        }
        groups = [
            group
            for of_arm in units.values()
            for group in (*([each] for each in of_arm), *([of_arm] if len(of_arm) > 1 else []))
        ]
        return [self._row(group, units[self.baseline]) for group in groups]

    def _row(self, group: Sequence[HeldOutUnit[AnsweredT]], baseline: Sequence[HeldOutUnit[AnsweredT]]) -> MeasuredArm:
        seeds = tuple(each.seed for each in group)
        before = [each for each in baseline if each.seed in seeds]
        is_compared = group[0].arm != self.baseline and len(before) == len(group)
        played = [each for unit in group for each in unit.held_out]
        return MeasuredArm(
            arm=group[0].arm,
            seeds=seeds,
            values={name: measure(played) for name, measure in self.measures.items()},
            over_baseline=_difference(before, group, lambda each: each.em) if is_compared else None,
        )

    def contrasted(self, results: Sequence[HeldOutUnit[AnsweredT]]) -> list[Contrasted]:
        """What the contrasts came to of which both arms were run with a seed."""
        units = {(each.arm, each.seed): each for each in results}
        found = []
        for each in self.contrasts:
            seeds = sorted(seed for arm, seed in units if arm == each.arm and (each.over, seed) in units)
            pairs = [(units[each.over, seed], units[each.arm, seed]) for seed in seeds]
            if not pairs:
                continue
            found.append(
                Contrasted(
                    name=f"{each.measure}, {each.arm} over {each.over}",
                    seeds=tuple(seeds),
                    difference=_difference([before for before, _ in pairs], [after for _, after in pairs], each.value),
                    by_seed=tuple(_difference([before], [after], each.value).value for before, after in pairs),
                )
            )
        return found

    def write(self, results: Sequence[HeldOutUnit[AnsweredT]], gaps: Sequence[str], folder: Path) -> None:
        """Write summary.json, and the plot if anything was trained.

        Args:
            results: What the units gave.
            gaps: Sentences about what is missing.
            folder: Folder for both.
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
        contrasts: list[Json] = [each.as_dict() for each in self.contrasted(results)]
        content = {"rows": found, "contrasts": contrasts, "gaps": [*gaps]}
        (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
        trained = trained_arms(results)
        if not trained:
            return
        figure, panels = plt.subplots(
            1, len(self.measures), figsize=(4 * len(self.measures) + 1, 4), layout="constrained"
        )
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
        table = _table(self.title, "arm", "seeds", *self.measures, self.compared)
        for row in self.rows(results):
            values = (f"{value:.2f}" for value in row.values.values())
            table.add_row(row.arm, _listed(row.seeds), *values, shown_difference(row.over_baseline))
        console.print(table)
        if contrasts := self.contrasted(results):
            table = _table("Contrasts", "contrast", "seeds", "difference", "by seed", "interval over trainings")
            for each in contrasts:
                by_seed = ", ".join(f"{value:+.3f}" for value in each.by_seed)
                trainings = each.over_trainings
                shown = "" if trainings is None else f"[{trainings.low:+.3f}, {trainings.high:+.3f}]"
                table.add_row(each.name, _listed(each.seeds), shown_difference(each.difference), by_seed, shown)
            console.print(table)
        for gap in gaps:
            console.print(gap, highlight=False)


def _difference(
    before: Sequence[HeldOutUnit[AnsweredT]],
    after: Sequence[HeldOutUnit[AnsweredT]],
    value: Callable[[AnsweredT], float],
) -> PairedDifference:
    """Means over the rows that both sides have, each row with its mean over seeds and samples."""
    means = [means_by_question((each for unit in units for each in unit.held_out), value) for units in (before, after)]
    return difference_of_means(*means)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
