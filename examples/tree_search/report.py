"""Evaluations and dumps of all units -> tables, a plot over training steps and over tokens, and summary.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.comparison import difference_as_json, gain, shown_difference
from examples.success import Played, Result, show, success_rows
from examples.tree_search.measures import StepTokens, sampled_until
from examples.tree_search.training import ARMS, PLAIN
from verl_pivot.statistics import PairedDifference
from verl_pivot.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Results of the training of one arm with one seed."""

    arm: str
    seed: int
    steps: Sequence[StepTokens]
    evaluations: Mapping[int, Sequence[Played]]
    """{step: trajectories on the held-out tasks}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One training at one of its evaluations."""

    arm: str
    seed: int
    step: int
    success: float
    over_plain: PairedDifference | None
    """Success minus that of plain rollouts at the same step; None for plain rollouts, or if they were not run."""
    sampled: int
    """Tokens sampled in all training steps so far."""
    kept: int
    """Tokens of these that are in the rollouts of the steps."""
    training_score: float
    """Mean score of the rollouts of the five steps before the evaluation."""

    def as_dict(self) -> JsonObject:
        return {**asdict(self), "over_plain": difference_as_json(self.over_plain)}


def cost_rows(trainings: Sequence[Trained]) -> list[CostRow]:
    """One row for each evaluation of each training, in the order of arms, seeds and steps."""
    plain = {each.seed: each.evaluations for each in trainings if each.arm == PLAIN}
    ordered = sorted(trainings, key=lambda each: (list(ARMS).index(each.arm), each.seed))
    return [
        _row(each, step, {} if each.arm == PLAIN else plain.get(each.seed, {}))
        for each in ordered
        for step in each.evaluations
        if step > 0
    ]


def _row(trained: Trained, step: int, plain: Mapping[int, Sequence[Played]]) -> CostRow:
    played = trained.evaluations[step]
    return CostRow(
        arm=trained.arm,
        seed=trained.seed,
        step=step,
        success=fmean(each.em for each in played),
        over_plain=gain(plain[step], played) if step in plain else None,
        sampled=sampled_until(trained.steps, step),
        kept=sum(each.kept for each in trained.steps if each.step <= step),
        training_score=fmean(each.mean_score for each in trained.steps if step - 5 < each.step <= step),
    )


def write(results: Sequence[Result], trainings: Sequence[Trained], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json, and tree_search.png if anything was trained."""
    content: JsonObject = {
        "rows": [each.as_dict() for each in success_rows(results, list(ARMS))],
        "trainings": [each.as_dict() for each in cost_rows(trainings)],
        "gaps": [*gaps],
    }
    (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    if trainings:
        _draw(cost_rows(trainings), folder / "tree_search.png")


def show_all(results: Sequence[Result], trainings: Sequence[Trained], gaps: Sequence[str], console: Console) -> None:
    """Print both tables, and what is missing."""
    table = Table(title="Trainings at their evaluations", title_justify="left")
    for column in ("arm", "seed", "step", "success", "over plain", "score in training", "tokens sampled", "kept"):
        table.add_column(column, overflow="fold")
    for row in cost_rows(trainings):
        table.add_row(
            row.arm,
            str(row.seed),
            str(row.step),
            f"{row.success:.3f}",
            shown_difference(row.over_plain),
            f"{row.training_score:.2f}",
            f"{row.sampled:,}",
            f"{row.kept:,}",
        )
    console.print(table)
    show(success_rows(results, list(ARMS)), gaps, console)


def _draw(rows: Sequence[CostRow], path: Path) -> None:
    """Plot the success on held-out tasks over updates and over sampled tokens, one line for each training."""
    figure, (over_steps, over_tokens) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
    colours = {arm: f"C{number}" for number, arm in enumerate(dict.fromkeys(row.arm for row in rows))}
    for arm, colour in colours.items():
        for seed in sorted({row.seed for row in rows if row.arm == arm}):
            own = [row for row in rows if (row.arm, row.seed) == (arm, seed)]
            label = arm if seed == min(row.seed for row in rows if row.arm == arm) else None
            success = [row.success for row in own]
            over_steps.plot([row.step for row in own], success, "o-", color=colour, label=label)
            over_tokens.plot([row.sampled / 1e6 for row in own], success, "o-", color=colour)
    over_steps.set(xlabel="training step", ylabel="held-out tasks solved")
    over_tokens.set(xlabel="million tokens sampled in training")
    over_steps.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
