"""Profiles of the candidates -> a histogram of how often the reference policy is right at a turn."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from verl_pivot.extras import extra
from verl_pivot.profiling.summary import TurnOutcome

with extra("data"):
    import duckdb
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch


# Distinguishable without colour vision too (Okabe and Ito).
_COLOURS = {TurnOutcome.ALWAYS_WRONG: "#D55E00", TurnOutcome.MIXED: "#0072B2", TurnOutcome.ALWAYS_RIGHT: "#009E73"}
_MAX_BARS = 33


class PassRateCount(NamedTuple):
    """Number of turns with one outcome and pass rate, of those that were kept or of the others."""

    outcome: TurnOutcome
    is_kept: bool
    pass_rate: float | None
    """Share of decided samples with full score; None where no sample was decided."""
    num_turns: int
    num_scores: int
    """Largest number of decided samples of any of these turns."""


def pass_rate_counts(database: duckdb.DuckDBPyConnection) -> list[PassRateCount]:
    """Counts of the profiled turns in the table `decisions`."""
    query = """
    select outcome, decision = 'kept', pass_rate, count(*), max(num_scores) from decisions
    where outcome is not null group by 1, 2, 3 order by 1, 2, 3
    """
    return [PassRateCount(TurnOutcome(member), *rest) for member, *rest in database.execute(query).fetchall()]


def draw_pass_rates(counts: Sequence[PassRateCount], path: Path) -> None:
    """Draw a histogram of pass rates as PNG: outcomes by colour, kept turns hatched."""
    num_bars = _num_bars(counts)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bottoms = [0] * num_bars
    for member, colour in _COLOURS.items():
        for is_kept in (False, True):
            heights = _heights(counts, member, is_kept, num_bars)
            axes.bar(
                [position / (num_bars - 1) for position in range(num_bars)],
                heights,
                bottom=bottoms,
                width=0.8 / (num_bars - 1),
                color=colour,
                alpha=1.0 if is_kept else 0.45,
                hatch="//" if is_kept else None,
                edgecolor="white",
            )
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    _label(axes, counts)
    figure.savefig(path, format="png", dpi=150)


def _num_bars(counts: Sequence[PassRateCount]) -> int:
    """One bar for each pass rate that the turn with the most samples could have, at most `_MAX_BARS`."""
    num_samples = max((each.num_scores for each in counts), default=1)
    return min(max(num_samples, 1) + 1, _MAX_BARS)


def _heights(counts: Sequence[PassRateCount], member: TurnOutcome, is_kept: bool, num_bars: int) -> list[int]:
    """[num_bars] number of turns of one outcome whose pass rate is nearest to each bar."""
    heights = [0] * num_bars
    for each in counts:
        if each.outcome is member and each.is_kept == is_kept and each.pass_rate is not None:
            heights[round(each.pass_rate * (num_bars - 1))] += each.num_turns
    return heights


def _label(axes: Axes, counts: Sequence[PassRateCount]) -> None:
    def total(member: TurnOutcome | None = None, is_kept: bool | None = None) -> int:
        return sum(
            each.num_turns for each in counts if member in (None, each.outcome) and is_kept in (None, each.is_kept)
        )

    classes = [
        Patch(color=colour, label=f"{member.value}: {total(member)} turns") for member, colour in _COLOURS.items()
    ]
    kept = Patch(facecolor="#666666", edgecolor="white", hatch="//", label=f"kept: {total(is_kept=True)} turns")
    axes.legend(handles=[*classes, kept], loc="upper center")
    axes.set_xlabel("pass rate of the reference policy at the turn")
    axes.set_ylabel("turns")
    axes.set_xlim(-0.1, 1.1)
    axes.set_title(f"{total()} profiled turns")
    axes.spines[["top", "right"]].set_visible(False)
