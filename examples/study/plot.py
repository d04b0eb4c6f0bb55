"""Outcomes of the study -> a plot: accuracy over the turns of training, and accuracy in the domains and outside."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.study.outcomes import StudyResults, UnitEvaluation, accuracy
from examples.study.verdicts import BASE

PLOT = "study.png"
"""Name of the file in a study's folder."""
_LEAST_SPAN = 20.0
"""Smallest span of an axis of the last accuracies, in percentage points."""


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
        for label, curve in _labelled(arm, curves):
            base = results.final(BASE, curve[0].seed)
            _draw_training(over_training, curve, base, outside, {"color": colour, "label": label})
            inside, out = (_percent(curve[-1], outside, inside=each) for each in (True, False))
            finals.plot([inside], [out], "o", color=colour, label=label)
    over_training.set(xlabel="turns sampled in training", ylabel="tasks of the domains solved, %")
    finals.set(xlabel="tasks of the domains solved at the end, %", ylabel="tasks outside solved at the end, %")
    _widen(finals)
    _legend(over_training)
    _legend(finals)
    return figure


def _draw_training(
    panel: Axes,
    curve: Sequence[UnitEvaluation],
    base: UnitEvaluation | None,
    outside: Collection[str],
    style: Mapping[str, Any],
) -> None:
    """Draw a training as a line that begins with the base policy, and an arm that samples no turns as a dashed line."""
    if len(curve) > 1:
        points = [*([] if base is None else [base]), *curve]
        panel.plot([each.turns for each in points], [_percent(each, outside) for each in points], ".-", **style)
    elif curve[-1].turns == 0 and curve[-1].arm != BASE:
        panel.axhline(_percent(curve[-1], outside), linestyle="--", **style)


def _labelled(arm: str, curves: Iterable[list[UnitEvaluation]]) -> Iterable[tuple[str, list[UnitEvaluation]]]:
    """Units that were run; only the first of an arm has its name, since a name that begins with "_" is in no legend."""
    run = [curve for curve in curves if curve]
    return zip([arm, *["_"] * len(run)], run, strict=False)


def _percent(evaluation: UnitEvaluation, outside: Collection[str], *, inside: bool = True) -> float:
    """Percent of the tasks solved; NaN, which is not drawn, if it is not known."""
    share = accuracy(evaluation, sorted(group for group in evaluation.solved if (group not in outside) is inside))
    return float("nan") if share is None else 100 * share


def _widen(panel: Axes) -> None:
    """Widen both axes to `_LEAST_SPAN`, so that differences of a few tasks do not look large; no axis exceeds 100 %."""
    for (low, high), setting in ((panel.get_xlim(), panel.set_xlim), (panel.get_ylim(), panel.set_ylim)):
        high = min(100.0, high + max(0.0, _LEAST_SPAN - (high - low)) / 2)
        setting(min(low, high - _LEAST_SPAN), high)


def _legend(panel: Axes) -> None:
    if panel.get_legend_handles_labels()[0]:
        panel.legend()
