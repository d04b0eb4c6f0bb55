"""FilterOutcome -> a picture: how many trajectories each filter left, and the charts of the filters."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_pivot.extras import extra
from verl_pivot.quality.contract import Chart
from verl_pivot.quality.filtering import FilterOutcome

with extra("data"):
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure


# Distinguishable without colour vision too (Okabe and Ito).
_COLOURS = ("#0072B2", "#E69F00", "#999999", "#009E73", "#D55E00", "#CC79A7")


def draw_outcome(outcome: FilterOutcome, path: Path) -> None:
    """Draw a PNG with one panel for the counts after each filter, and one for each chart of a filter."""
    counts = {"in": len(outcome.ids)}
    left = len(outcome.ids)
    for step in outcome.steps:
        left -= step.num_dropped
        counts[step.label.replace("_", " ")] = left
    charts = [chart for step in outcome.steps for chart in step.charts]
    draw_counts(counts, "trajectories left after each filter", charts, path)


def draw_counts(counts: Mapping[str, int], meaning: str, charts: Sequence[Chart], path: Path) -> None:
    """Draw a PNG with one panel of horizontal bars, and one for each chart.

    Args:
        counts: {label: length of its bar}, the first on top.
        meaning: What is counted.
        charts: The other panels.
        path: File to write.
    """
    figure = Figure(figsize=(8, 3.6 * (1 + len(charts))), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1 + len(charts), 1, squeeze=False)[:, 0]
    _draw_bars(panels[0], counts, meaning)
    for axes, chart in zip(panels[1:], charts, strict=True):
        _draw_chart(axes, chart)
    figure.savefig(path, format="png", dpi=120)


def _draw_bars(axes: Axes, counts: Mapping[str, int], meaning: str) -> None:
    bars = axes.barh(list(counts), list(counts.values()), color=_COLOURS[0])
    axes.bar_label(bars, labels=[str(count) for count in counts.values()], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel(meaning)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_chart(axes: Axes, chart: Chart) -> None:
    width = 0.8 / len(chart.series)
    for number, (name, heights) in enumerate(chart.series.items()):
        places = [place + (number + 0.5) * width - 0.4 for place in range(len(chart.labels))]
        axes.bar(places, heights, width=width, label=name, color=_COLOURS[number % len(_COLOURS)])
    axes.set_xticks(range(len(chart.labels)), chart.labels)
    axes.set_title(chart.title)
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)
