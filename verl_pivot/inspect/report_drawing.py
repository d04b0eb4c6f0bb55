"""Series over the steps of one run or several -> a drawing in SVG, with a curve for each run."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from verl_pivot.inspect.html_text import as_html

NUM_COLOURS = 6
"""Number of colours of runs; the next six runs have the same colours with dashed lines."""
MAX_POINTS = 1_600
"""Maximum number of points of all curves in one drawing."""
_WIDTH, _HEIGHT = 340, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 20


class Point(NamedTuple):
    """A value at a step of the training."""

    step: int
    value: float


def draw(title: str, series: Sequence[Sequence[Point]]) -> str:
    """A figure with its title, and with the smallest and largest value and step at its edges.

    Args:
        title: Name of the values.
        series: [num_runs, num_points] finite values; at least one run has a point.
    """
    every = [point for points in series for point in points]
    low, high = min(point.value for point in every), max(point.value for point in every)
    begin, end = min(point.step for point in every), max(point.step for point in every)
    about = f"{title}, steps {begin} to {end}, least {short_number(low)}, greatest {short_number(high)}"
    if low == high:
        margin = abs(low) / 2 or 0.5
        edges, low, high = [low], low - margin, high + margin
    else:
        edges = [low, high]

    def height(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def place(point: Point) -> str:
        x = _LEFT + (point.step - begin) / ((end - begin) or 1) * (_WIDTH - _LEFT - _RIGHT)
        return f"{x:.1f},{height(point.value):.1f}"

    lines = [
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height(edge):.1f}" y2="{height(edge):.1f}"/>'
        f'<text x="{_LEFT - 4}" y="{height(edge) + 4:.1f}" text-anchor="end">{short_number(edge)}</text>'
        for edge in edges
    ]
    for run, points in enumerate(series):
        shown = thinned(points, max(2, MAX_POINTS // len(series)))
        if len(shown) == 1:
            x, y = place(shown[0]).split(",")
            lines.append(f'<circle class="{colour(run)}" cx="{x}" cy="{y}" r="2.5"/>')
        elif shown:
            lines.append(f'<polyline class="{colour(run)}" points="{" ".join(map(place, shown))}"/>')
    return (
        f'<figure class="curve"><figcaption>{as_html(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{as_html(about)}">{"".join(lines)}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 5}">{begin}</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 5}" text-anchor="end">step {end}</text></svg></figure>'
    )


def thinned(points: Sequence[Point], max_points: int) -> list[Point]:
    """At most `max_points` of the points: the smallest and largest of each stretch, so that no peak is lost.

    Args:
        points: [num_points] in the order of their steps.
        max_points: Maximum number of points, >= 2.
    """
    if len(points) <= max_points:
        return list(points)
    length = math.ceil(len(points) / (max_points // 2))
    stretches = (points[begin : begin + length] for begin in range(0, len(points), length))
    return [
        point
        for stretch in stretches
        for point in sorted({min(stretch, key=_value), max(stretch, key=_value)})
    ]  # fmt: skip


def _value(point: Point) -> float:
    return point.value


def colour(run: int) -> str:
    """CSS class of the elements that belong to a run, by the number of the run from 0."""
    dashes = " dashed" if run // NUM_COLOURS % 2 else ""
    return f"run-{run % NUM_COLOURS}{dashes}"


def short_number(value: float | None) -> str:
    """A number for people: a whole one below 1e9 in full, others with at most four significant digits; "" for None."""
    if value is None:
        return ""
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e6 else f"{value:.3g}"
