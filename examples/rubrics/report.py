"""Dumps of reports -> their true quality and how many are stuffed: a table, a plot over training, and summary.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.comparison import UnitResult, difference_as_json, draw_curve, gain, shown_difference, trainings_of_arms
from examples.rubrics.reports import is_stuffed, quality
from examples.rubrics.training import ARMS, FIXED
from examples.world.entities import Entity
from verl_pivot.data.rollout_dumps import FOLDER, read_rollouts
from verl_pivot.statistics import PairedDifference
from verl_pivot.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report that was scored."""

    prompt_id: str
    em: float
    """Its true quality: the share of the facts that it tells rightly."""
    is_stuffed: bool
    score: float
    """What the judge's points came to."""


Result = UnitResult[Report]


def read_dump(path: Path, people: Mapping[str, Entity]) -> list[Report]:
    """All decided reports of a dump, whose prompts are about these people."""
    reports = []
    for row in read_rollouts(path):
        if row.score is None or row.record is None or row.record.is_masked:
            continue
        text = row.turns[-1].recorded_text
        person = people[row.record.prompt_id]
        reports.append(
            Report(
                prompt_id=row.record.prompt_id,
                em=quality(text, person),
                is_stuffed=is_stuffed(text),
                score=row.score,
            )
        )
    return reports


def read_training(folder: Path, people: Mapping[str, Entity]) -> dict[int, list[Report]]:
    """{step: reports} of `trainer.rollout_data_dir`, in order of the steps."""
    paths = sorted((folder / FOLDER).glob("*.jsonl"), key=lambda path: int(path.stem))
    return {int(path.stem): read_dump(path, people) for path in paths}


def mean_quality(reports: Sequence[Report]) -> float:
    return fmean(each.em for each in reports)


def stuffed_share(reports: Sequence[Report]) -> float:
    return fmean(each.is_stuffed for each in reports)


def mean_score(reports: Sequence[Report]) -> float:
    return fmean(each.score for each in reports)


_MEASURES: Mapping[str, Callable[[Sequence[Report]], float]] = {
    "stuffed reports": stuffed_share,
    "true quality": mean_quality,
    "the judge's score": mean_score,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """One unit on the held-out people."""

    arm: str
    seed: int
    values: Mapping[str, float]
    """{measure: value}"""
    over_fixed: PairedDifference | None
    """True quality over the arm `fixed` of the seed; None for itself, and where that was not run."""


def rows(results: Sequence[Result]) -> list[ArmRow]:
    """One row for each unit, in the order of arms and seeds."""
    fixed = {each.seed: each.held_out for each in results if each.arm == FIXED}
    return [
        ArmRow(
            arm=each.arm,
            seed=each.seed,
            values={name: measure(each.held_out) for name, measure in _MEASURES.items()},
            over_fixed=gain(fixed[each.seed], each.held_out) if each.arm != FIXED and each.seed in fixed else None,
        )
        for each in sorted(results, key=lambda each: (ARMS.index(each.arm), each.seed))
    ]


def write(results: Sequence[Result], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json, and rubrics.png if anything was trained."""
    found: list[Json] = [
        {"arm": row.arm, "seed": row.seed, **row.values, "quality over fixed": difference_as_json(row.over_fixed)}
        for row in rows(results)
    ]
    (folder / "summary.json").write_text(json.dumps({"rows": found, "gaps": [*gaps]}, indent=1) + "\n")
    arms = trainings_of_arms(results)
    if not arms:
        return
    figure, panels = plt.subplots(1, len(_MEASURES), figsize=(14, 4), layout="constrained")
    for panel, (name, measure) in zip(panels, _MEASURES.items(), strict=True):
        for arm, trainings in arms.items():
            draw_curve(panel, measure, arm, trainings)
        panel.set(xlabel="training step", title=name)
    panels[0].legend()
    figure.savefig(folder / "rubrics.png", dpi=110)
    plt.close(figure)


def show(results: Sequence[Result], gaps: Sequence[str], console: Console) -> None:
    """Print the table, and what is missing."""
    table = Table(title="Reports on held-out people, one each", title_justify="left")
    for column in ("arm", "seed", *_MEASURES, "quality over fixed"):
        table.add_column(column, overflow="fold")
    for row in rows(results):
        values = (f"{value:.2f}" for value in row.values.values())
        table.add_row(row.arm, str(row.seed), *values, shown_difference(row.over_fixed))
    console.print(table)
    for gap in gaps:
        console.print(gap, highlight=False)
