"""Outcomes of the study -> a plot: accuracy over the turns of training, and accuracy in the domains and outside."""

from collections.abc import Collection, Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.study.outcomes import StudyResults, UnitEvaluation, accuracy

PLOT = "study.png"
"""Name of the file in a study's folder."""


def plot(results: StudyResults, seeds: Sequence[int], outside: Collection[str]) -> Figure:
    """A line or a point for each unit that was run, in the colour of its arm.

    Args:
        results: Outcomes of the study.
        seeds: Seeds that are drawn.
        outside: Groups of tasks outside of the domains.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    over_training, finals = figure.subplots(1, 2)
    for number, arm in enumerate(dict.fromkeys(each.arm for each in results.evaluations)):
        curves = [results.curve(arm, seed) for seed in seeds]
        colour = f"C{number}"
        if max(map(len, curves)) > 1:
            for label, curve in _labelled(arm, curves):
                percents = [_percent(each, outside) for each in curve]
                over_training.plot([each.turns for each in curve], percents, ".-", color=colour, label=label)
        for label, curve in _labelled(arm, curves):
            final = curve[-1]
            finals.plot(
                [_percent(final, outside)], [_percent(final, outside, inside=False)], "o", color=colour, label=label
            )
    over_training.set(xlabel="turns sampled in training", ylabel="tasks of the domains solved, %")
    finals.set(xlabel="tasks of the domains solved at the end, %", ylabel="tasks outside solved at the end, %")
    _legend(over_training)
    _legend(finals)
    return figure


def _labelled(arm: str, curves: Iterable[list[UnitEvaluation]]) -> Iterable[tuple[str, list[UnitEvaluation]]]:
    """Units that were run; only the first of an arm has its name, since a name that begins with "_" is in no legend."""
    run = [curve for curve in curves if curve]
    return zip([arm, *["_"] * len(run)], run, strict=False)


def _percent(evaluation: UnitEvaluation, outside: Collection[str], *, inside: bool = True) -> float:
    """Percent of the tasks solved; NaN, which is not drawn, if it is not known."""
    share = accuracy(evaluation, sorted(group for group in evaluation.solved if (group not in outside) is inside))
    return float("nan") if share is None else 100 * share


def _legend(panel: Axes) -> None:
    if panel.get_legend_handles_labels()[0]:
        panel.legend()
