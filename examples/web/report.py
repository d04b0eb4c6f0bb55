"""Evaluations and training dumps of all units -> a table with intervals, plots over training steps, summary.json."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from examples.comparison import (
    difference_as_json,
    difference_of_means,
    draw_curve,
    mean,
    means_by_question,
    shown_difference,
    trained_arms,
)
from examples.contrasts import Contrast, Contrasted, contrast_table, contrasted
from examples.evaluation_results import EARLIER, EvaluatedResult, curve, earlier, grouped
from examples.results_file import StudyReport
from examples.web.measures import MEASURES, PARTS, SEEN, Played, actions_per_success, of_part, success
from examples.web.tasks import SINGLE_ACTION
from examples.web.training import ARMS, BASE, BASE_WORKFLOWS, OUTCOME
from verl_pivot.statistics import Interval, PairedDifference, wilson_interval
from verl_pivot.types import Json, JsonObject

_KNOWN_BY_SENTENCE = ("click-dialog-2", "focus-text-2")
"""Tasks with only three sentences each: a workflow of the same sentence names the element to act on."""


def _contrast(arm: str, over: str, what: str, applies: Callable[[Played], bool]) -> Contrast[Played]:
    return Contrast(arm=arm, over=over, measure=f"success, {what}", value=lambda each: each.em, applies=applies)


def _in_training(arm: str, what: str, applies: Callable[[Played], bool]) -> Contrast[Played]:
    measure = f"success in training, {what}"
    return Contrast(
        arm=arm, over=OUTCOME, measure=measure, value=lambda each: each.em, applies=applies, in_training=True
    )


def _actions(arm: str, over: str) -> Contrast[Played]:
    """Contrast of the numbers of actions, on those rows of seen tasks that both arms solve."""
    return Contrast(
        arm=arm,
        over=over,
        measure="actions of a success, seen tasks",
        value=lambda each: float(each.num_actions),
        applies=lambda each: each.is_solved and _is_seen(each),
    )


def _is_seen(played: Played) -> bool:
    return played.part == SEEN


def _is_helped(played: Played) -> bool:
    """Whether the task is seen, and no workflow gives its answer by naming the element to act on."""
    return _is_seen(played) and played.task not in _KNOWN_BY_SENTENCE


def _is_unseen(played: Played) -> bool:
    return not _is_seen(played)


def _is_long(played: Played) -> bool:
    """Whether the task takes several actions, so that a judge can reward progress before the end."""
    return played.task not in SINGLE_ACTION


CONTRASTS: Sequence[Contrast[Played]] = (
    *(_contrast(arm, BASE, "seen tasks", _is_seen) for arm in (OUTCOME, "gain")),
    *(
        contrast
        for arm in ("progress", "gain", "progress_20", "gain_20")
        for contrast in (
            _in_training(arm, "all tasks", lambda each: True),
            _in_training(arm, "tasks of several actions", _is_long),
            _contrast(EARLIER.format(arm), OUTCOME, "seen tasks", _is_seen),
        )
    ),
    *(
        _contrast(arm, over, what, applies)
        for arm, over in ((arm, kind.without_workflows) for arm, kind in ARMS.items())
        if over is not None
        for what, applies in (("seen tasks that no workflow answers", _is_helped), ("unseen tasks", _is_unseen))
    ),
    *(_actions(arm, kind.without_workflows) for arm, kind in ARMS.items() if kind.without_workflows is not None),
    _contrast("gain_workflows", "outcome_workflows", "seen tasks", _is_seen),
)
"""What the study asks: whether training helps, whether a checklist is faster, and what workflows do."""
Result = EvaluatedResult[Played]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm on the held-out rows of seen, or of unseen tasks, with one seed or over several."""

    arm: str
    seeds: tuple[int, ...]
    part: str
    success: float
    interval: Interval
    """Wilson's interval of the success; each row is one trial, however many seeds played it."""
    over: Mapping[str, PairedDifference]
    """{other arm: success minus the other arm's with the same seeds}, for the arms in `compared_with`."""
    actions: float
    """Mean number of actions of the trajectories that solved their task; NaN if none did."""
    num_rows: int
    """Held-out rows of the part that were decided with at least one seed."""

    def as_dict(self) -> JsonObject:
        return {
            "arm": self.arm,
            "seeds": [*self.seeds],
            "tasks": self.part,
            "num_rows": self.num_rows,
            "success": self.success if self.num_rows else None,
            "success interval": [self.interval.low, self.interval.high] if self.num_rows else None,
            **{f"success over {arm}": difference_as_json(each) for arm, each in self.over.items()},
            "actions of a success": None if self.actions != self.actions else self.actions,
        }


def rows(results: Sequence[Result]) -> list[Row]:
    """Two rows for each unit, in the order of arms, and two rows over all seeds after an arm with several seeds."""
    return [_row(group, results, part) for group in grouped(results, ARMS) for part in PARTS]


def _row(group: Sequence[Result], results: Sequence[Result], part: str) -> Row:
    arm, seeds = group[0].arm, {each.seed for each in group}
    others = {
        name: [each for each in results if each.arm == name and each.seed in seeds] for name in compared_with(arm)
    }
    by_row = _success_by_row(group, part)
    share = mean(list(by_row.values()))
    before = {name: _success_by_row(other, part) for name, other in others.items() if len(other) == len(group)}
    over = {name: difference_of_means(each, by_row) for name, each in before.items() if each.keys() & by_row.keys()}
    return Row(
        arm=arm,
        seeds=tuple(sorted(seeds)),
        part=part,
        success=share,
        interval=wilson_interval(share, len(by_row)) if by_row else Interval(float("nan"), float("nan")),
        over=over,
        actions=actions_per_success([each for result in group for each in of_part(result.held_out, part)]),
        num_rows=len(by_row),
    )


def compared_with(arm: str) -> list[str]:
    """Arms whose success is subtracted from an arm's: base policy, outcome alone, and itself without workflows."""
    others = dict.fromkeys((BASE, OUTCOME, ARMS[arm].without_workflows))
    return [each for each in others if each is not None and each != arm]


def _success_by_row(group: Sequence[Result], part: str) -> dict[str, float]:
    """{prompt_id: mean success over the seeds}"""
    return means_by_question(each for result in group for each in of_part(result.held_out, part))


def _curve(group: Sequence[Result], part: str) -> dict[int, float]:
    """{step: mean success over the seeds} of the evaluations that all seeds have."""
    return curve(group, lambda played: success(of_part(played, part)))


def contrasts(results: Sequence[Result]) -> list[Contrasted]:
    """Results of the contrasts, also of those between arms at two thirds of their steps and other arms."""
    return contrasted(CONTRASTS, [*results, *filter(None, map(earlier, results))])


def write(results: Sequence[Result], gaps: Sequence[str], folder: Path) -> None:
    """Write summary.json, and web.png if anything was trained."""
    evaluations: list[Json] = [
        {"arm": each.arm, "seed": each.seed, "step": step, "tasks": part, "success": success(of_part(played, part))}
        for each in results
        for step, played in each.evaluations.items()
        for part in PARTS
    ]
    found: list[Json] = [each.as_dict() for each in contrasts(results)]
    content: JsonObject = {
        "rows": [each.as_dict() for each in rows(results)],
        "contrasts": found,
        "evaluations": evaluations,
        "gaps": [*gaps],
    }
    (folder / "summary.json").write_text(json.dumps(content, indent=1) + "\n")
    if any(each.training for each in results):
        draw(results, folder / "web.png")


def show(results: Sequence[Result], gaps: Sequence[str], console: Console) -> None:
    """Print the table, and what is missing."""
    table = Table(title="Held-out rows, one sampled trajectory each", title_justify="left")
    compared = ("over base", "over outcome", "over the same without workflows")
    columns = ("arm", "seeds", "tasks", "success", *compared, "actions of a success")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows(results):
        low, high = row.interval
        counterpart = ARMS[row.arm].without_workflows
        table.add_row(
            row.arm,
            ", ".join(map(str, row.seeds)),
            row.part,
            f"{row.success:.3f} [{low:.3f}, {high:.3f}]",
            shown_difference(row.over.get(BASE)),
            shown_difference(row.over.get(OUTCOME)),
            "" if counterpart is None else shown_difference(row.over.get(counterpart)),
            f"{row.actions:.2f}",
        )
    console.print(table)
    if found := contrasts(results):
        console.print(contrast_table(found))
    for gap in gaps:
        console.print(gap, highlight=False)


def draw(results: Sequence[Result], path: Path) -> None:
    """Plot success on the held-out rows, and the measures of training, over steps."""
    arms = trained_arms(results)
    figure, panels = plt.subplots(2, 3, figsize=(15, 9), layout="constrained")
    for panel, part in zip(panels.flat, PARTS, strict=False):
        _draw_evaluations(panel, arms, results, part)
    for panel, (name, measure) in zip(panels.flat[len(PARTS) :], MEASURES.items(), strict=True):
        for arm, of_arm in arms.items():
            draw_curve(panel, measure, arm, [each.training for each in of_arm])
        panel.set(xlabel="training step", title=f"{name}, in training")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_evaluations(panel: Axes, arms: Mapping[str, Sequence[Result]], results: Sequence[Result], part: str) -> None:
    """Plot success over training steps, with the base policy at step 0 if it was evaluated in the same way."""
    for arm, of_arm in arms.items():
        start = BASE_WORKFLOWS if ARMS[arm].has_workflows else BASE
        seeds = {each.seed for each in of_arm}
        base = [each for each in results if each.arm == start and each.seed in seeds]
        values = _curve(of_arm, part)
        if len(base) == len(of_arm):
            values = {**_curve(base, part), **values}
        panel.plot(list(values), list(values.values()), marker="o", label=arm)
    panel.set(xlabel="training step", title=f"success on held-out rows, {part} tasks")


STUDY = StudyReport(arms=ARMS, played=Played, write=write, show=show)
