"""FilterOutcome -> a picture: how many trajectories each filter left, and the charts of the filters."""

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
    charts = [chart for step in outcome.steps for chart in step.charts]
    figure = Figure(figsize=(8, 3.6 * (1 + len(charts))), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1 + len(charts), 1, squeeze=False)[:, 0]
    _draw_funnel(panels[0], outcome)
    for axes, chart in zip(panels[1:], charts, strict=True):
        _draw_chart(axes, chart)
    figure.savefig(path, format="png", dpi=120)


def _draw_funnel(axes: Axes, outcome: FilterOutcome) -> None:
    labels, counts = ["in"], [len(outcome.ids)]
    for step in outcome.steps:
        labels.append(step.label.replace("_", " "))
        counts.append(counts[-1] - step.num_dropped)
    bars = axes.barh(labels, counts, color=_COLOURS[0])
    axes.bar_label(bars, labels=[str(count) for count in counts], padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("trajectories left after each filter")
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
