"""Evaluations and training dumps of all units -> a table with intervals, plots over training steps, summary.json."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt
from cycler import cycler
from matplotlib import color_sequences
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from examples.comparison import (
    difference_as_json,
    difference_of_means,
    draw_curve,
    means_by_question,
    shown_difference,
    trained_arms,
)
from examples.contrasts import Contrast, Contrasted, contrast_table, contrasted
from examples.evaluation_results import EARLIER, EvaluatedResult, curve, earlier, grouped
from examples.ppr.measures import EM, MEASURES, SEARCHES, TOKENS, TURNS, VALID_SEARCHES, Played
from examples.ppr.training import ARMS, BASE, OUTCOME
from examples.results_file import StudyReport
from verl_pivot.statistics import Interval, PairedDifference, wilson_interval
from verl_pivot.types import Json, JsonObject

_SHOWN = (TURNS, TOKENS, SEARCHES, VALID_SEARCHES)
"""Measures in the table; summary.json has all."""
_EM = MEASURES[EM]

Result = EvaluatedResult[Played]


def _contrast(arm: str, over: str, *, in_training: bool = False) -> Contrast[Played]:
    measure = "EM in training" if in_training else "EM"
    return Contrast(arm=arm, over=over, measure=measure, value=lambda each: each.em, in_training=in_training)


CONTRASTS: Sequence[Contrast[Played]] = (
    *(
        contrast
        for arm in ("renorm_oracle", "renorm_pprm")
        for contrast in (
            _contrast(arm, OUTCOME),
            _contrast(EARLIER.format(arm), OUTCOME),
            _contrast(arm, OUTCOME, in_training=True),
        )
    ),
    *(_contrast(f"renorm_oracle_{share}", "renorm_oracle") for share in (20, 40)),
    *(_contrast(f"{mode}_length", "renorm_length") for mode in ("sum", "process")),
    _contrast("renorm_pprm", "renorm_oracle"),
    *(
        _contrast(arm, "renorm_pprm")
        for arm, kind in ARMS.items()
        if kind.judge in ("pprm", "pprm_one_question") and arm != "renorm_pprm"
    ),
)
"""What the study asks: whether PPR is better or faster than the outcome alone, and what each part of PPR adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm on the held-out questions, with one seed or over several."""

    arm: str
    seeds: tuple[int, ...]
    em: float
    interval: Interval
    """Wilson's interval of EM; each question is one trial, however many seeds answered it."""
    over_outcome: PairedDifference | None
    """EM minus that of the arm `outcome` with the same seeds; None for that arm itself, or if it was not run."""
    measures: dict[str, float]
    unseen: float
    """EM on the kind of question that training never asked."""
    num_questions: int

    def as_dict(self) -> JsonObject:
        measures: JsonObject = {name: None if value != value else value for name, value in self.measures.items()}
        return {
            "arm": self.arm,
            "seeds": [*self.seeds],
            "num_questions": self.num_questions,
            **measures,
            "EM interval": [self.interval.low, self.interval.high],
            "EM on the unseen kind": self.unseen,
            "EM over outcome": difference_as_json(self.over_outcome),
        }


def rows(results: Sequence[Result]) -> list[Row]:
    """A row for each unit, in order, and after those of an arm with several seeds a row over all of them."""
    return [_row(group, results) for group in grouped(results, ARMS)]


def _row(group: Sequence[Result], results: Sequence[Result]) -> Row:
    seeds = {each.seed for each in group}
    outcome = [each for each in results if each.arm == OUTCOME and each.seed in seeds]
    is_comparable = group[0].arm != OUTCOME and len(outcome) == len(group)
    played = [each for result in group for each in result.held_out]
    by_question = _em_by_question(group)
    em = fmean(by_question.values())
    unseen = means_by_question(each for each in played if each.is_unseen)
    return Row(
        arm=group[0].arm,
        seeds=tuple(sorted(seeds)),
        em=em,
        interval=wilson_interval(em, len(by_question)),
        over_outcome=difference_of_means(_em_by_question(outcome), by_question) if is_comparable else None,
        measures={name: measure(played) for name, measure in MEASURES.items()},
        unseen=fmean(unseen.values()) if unseen else float("nan"),
        num_questions=len(by_question),
    )


def _em_by_question(group: Sequence[Result]) -> dict[str, float]:
    """{prompt_id: mean EM over the seeds}"""
    return means_by_question(each for result in group for each in result.held_out)


def contrasts(results: Sequence[Result]) -> list[Contrasted]:
    """Results of the contrasts, also of those between arms at two thirds of their steps and other arms."""
    return contrasted(CONTRASTS, [*results, *filter(None, map(earlier, results))])


def write(results: Sequence[Result], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json, and ppr.png if anything was trained."""
    evaluations: list[Json] = [
        {"arm": each.arm, "seed": each.seed, "step": step, "EM": _EM(played)}
        for each in results
        for step, played in each.evaluations.items()
    ]
    content: JsonObject = {
        "rows": [each.as_dict() for each in rows(results)],
        "contrasts": [each.as_dict() for each in contrasts(results)],
        "evaluations": evaluations,
        "gaps": [*gaps],
    }
    (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    if any(each.training for each in results):
        draw(results, folder / "ppr.png")


def show(results: Sequence[Result], gaps: Sequence[str], console: Console) -> None:
    """Print the table, and what is missing."""
    table = Table(title="Held-out questions, one sampled answer each", title_justify="left")
    for column in ("arm", "seeds", "EM", "over outcome", *_SHOWN, "EM, unseen kind"):
        table.add_column(column, overflow="fold")
    for row in rows(results):
        low, high = row.interval
        table.add_row(
            row.arm,
            ", ".join(map(str, row.seeds)),
            f"{row.em:.3f} [{low:.3f}, {high:.3f}]",
            shown_difference(row.over_outcome),
            *(f"{row.measures[name]:.2f}" for name in _SHOWN),
            f"{row.unseen:.3f}",
        )
    console.print(table)
    if found := contrasts(results):
        console.print(contrast_table(found))
    for gap in gaps:
        console.print(gap, highlight=False)


def draw(results: Sequence[Result], path: Path) -> None:
    """Plot each measure over training steps: the mean over seeds, and the range from lowest to highest seed."""
    arms = trained_arms(results)
    with plt.rc_context({"axes.prop_cycle": cycler(color=color_sequences["tab20"])}):  # there are 14 arms
        figure, panels = plt.subplots(3, 4, figsize=(18, 11), layout="constrained")
    for panel, name in zip(panels.flat, MEASURES, strict=False):
        for arm, of_arm in arms.items():
            draw_curve(panel, MEASURES[name], arm, [each.training for each in of_arm])
        panel.set(xlabel="training step", title=name)
    _draw_evaluations(panels.flat[len(MEASURES)], arms, [each for each in results if each.arm == BASE])
    for panel in panels.flat[len(MEASURES) + 1 :]:
        panel.set_axis_off()
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_evaluations(panel: Axes, arms: Mapping[str, Sequence[Result]], base: Sequence[Result]) -> None:
    """Plot EM on the held-out questions over training steps, with the base policy at step 0 if it was evaluated."""
    for of_arm in arms.values():
        seeds = {each.seed for each in of_arm}
        start = [each for each in base if each.seed in seeds]
        values = curve(of_arm, _EM)
        if len(start) == len(of_arm):
            values = {**curve(start, _EM), **values}
        panel.plot(list(values), list(values.values()), marker="o")
    panel.set(xlabel="training step", title="EM on held-out questions")


STUDY = StudyReport(arms=ARMS, played=Played, write=write, show=show)
