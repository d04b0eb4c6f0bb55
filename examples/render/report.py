"""Dumps of pages -> scores by the verifier, and shares of pages that are broken: a table, a plot, and summary.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.comparison import UnitResult, difference_as_json, draw_curve, gain, shown_difference, trainings_of_arms
from examples.render.training import ARMS, BASE
from verl_pivot.data.rollout_dumps import FOLDER, DumpedRollout, read_rollouts
from verl_pivot.statistics import PairedDifference
from verl_pivot.types import Json

_BROKEN = "getElementById('c')"
"""What a page with a script error holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One trajectory that was scored."""

    prompt_id: str
    em: float
    """Score of its best page by the verifier, an invalid page being 0, whatever the arm is paid."""
    last: float
    """Score of its last page."""
    broken: float
    """Share of its pages whose script raises."""
    looks: int
    """Pages that it looked at."""


Result = UnitResult[Design]


def read_dump(path: Path) -> list[Design]:
    """All decided trajectories of a dump."""
    return [design for row in read_rollouts(path) if (design := _design(row)) is not None]


def _design(row: DumpedRollout) -> Design | None:
    if row.score is None or row.record is None or row.record.is_masked:
        return None
    looks = [call for call in row.record.calls if call.name == "look" and call.arguments is not None]
    pages = [str(call.arguments["html"]) for call in looks if call.arguments is not None]
    scores = [
        0.0 if _BROKEN in page else call.reward
        for page, call in zip(pages, looks, strict=True)
        if call.reward is not None
    ]
    return Design(
        prompt_id=row.record.prompt_id,
        em=max(scores, default=0.0),
        last=scores[-1] if scores else 0.0,
        broken=fmean(_BROKEN in page for page in pages) if pages else 0.0,
        looks=len(pages),
    )


def read_training(folder: Path) -> dict[int, list[Design]]:
    """{step: trajectories} of `trainer.rollout_data_dir`, in order of the steps."""
    paths = sorted((folder / FOLDER).glob("*.jsonl"), key=lambda path: int(path.stem))
    return {int(path.stem): read_dump(path) for path in paths}


_MEASURES: Mapping[str, Callable[[Sequence[Design]], float]] = {
    "score of the best page": lambda designs: fmean(each.em for each in designs),
    "score of the last page": lambda designs: fmean(each.last for each in designs),
    "broken pages": lambda designs: fmean(each.broken for each in designs),
    "looks": lambda designs: fmean(each.looks for each in designs),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """One unit on the held-out requests."""

    arm: str
    seed: int
    values: Mapping[str, float]
    """{measure: value}"""
    over_base: PairedDifference | None
    """Score of the best page over the base policy's; None for itself, and where that was not run."""


def rows(results: Sequence[Result]) -> list[ArmRow]:
    """One row for each unit, in the order of arms and seeds."""
    base = {each.seed: each.held_out for each in results if each.arm == BASE}
    order = list(ARMS)
    return [
        ArmRow(
            arm=each.arm,
            seed=each.seed,
            values={name: measure(each.held_out) for name, measure in _MEASURES.items()},
            over_base=gain(base[each.seed], each.held_out) if each.arm != BASE and each.seed in base else None,
        )
        for each in sorted(results, key=lambda each: (order.index(each.arm), each.seed))
    ]


def write(results: Sequence[Result], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json, and render.png if anything was trained."""
    found: list[Json] = [
        {"arm": row.arm, "seed": row.seed, **row.values, "over base": difference_as_json(row.over_base)}
        for row in rows(results)
    ]
    (folder / "summary.json").write_text(json.dumps({"rows": found, "gaps": [*gaps]}, indent=1) + "\n")
    arms = trainings_of_arms(results)
    if not arms:
        return
    figure, panels = plt.subplots(1, len(_MEASURES), figsize=(16, 4), layout="constrained")
    for panel, (name, measure) in zip(panels, _MEASURES.items(), strict=True):
        for arm, trainings in arms.items():
            draw_curve(panel, measure, arm, trainings)
        panel.set(xlabel="training step", title=name)
    panels[0].legend()
    figure.savefig(folder / "render.png", dpi=110)
    plt.close(figure)


def show(results: Sequence[Result], gaps: Sequence[str], console: Console) -> None:
    """Print the table, and what is missing."""
    table = Table(title="Held-out requests, one trajectory each", title_justify="left")
    for column in ("arm", "seed", *_MEASURES, "best page over base"):
        table.add_column(column, overflow="fold")
    for row in rows(results):
        values = (f"{value:.2f}" for value in row.values.values())
        table.add_row(row.arm, str(row.seed), *values, shown_difference(row.over_base))
    console.print(table)
    for gap in gaps:
        console.print(gap, highlight=False)
