"""Profiles of the candidates -> a picture of how often the reference policy is right at each turn."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from verl_pivot.profiling.summary import Outcome, outcome
from verl_pivot.selection.decisions import Candidate, Decision

# Distinguishable without colour vision too (Okabe and Ito).
_COLOURS = {Outcome.ALWAYS_WRONG: "#D55E00", Outcome.MIXED: "#0072B2", Outcome.ALWAYS_RIGHT: "#009E73"}
_MAX_BARS = 33


def draw_pass_rates(candidates: Sequence[Candidate], decisions: Sequence[Decision], path: Path) -> None:
    """Histogram of pass rates as PNG: the classes by colour, the kept turns hatched."""
    bars = _num_bars(candidates)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    bottoms = [0] * bars
    for member, colour in _COLOURS.items():
        for is_kept in (False, True):
            heights = _heights(candidates, decisions, member, is_kept, bars)
            axes.bar(
                [position / (bars - 1) for position in range(bars)],
                heights,
                bottom=bottoms,
                width=0.8 / (bars - 1),
                color=colour,
                alpha=1.0 if is_kept else 0.45,
                hatch="//" if is_kept else None,
                edgecolor="white",
            )
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    _label(axes, candidates, decisions)
    figure.savefig(path, format="png", dpi=150)


def _num_bars(candidates: Sequence[Candidate]) -> int:
    """One bar per possible pass rate, k of the most samples that a turn has."""
    num_samples = max((len(c.profile.scores) for c in candidates if c.profile is not None), default=1)
    return min(max(num_samples, 1) + 1, _MAX_BARS)


def _heights(
    candidates: Sequence[Candidate], decisions: Sequence[Decision], member: Outcome, is_kept: bool, bars: int
) -> list[int]:
    """[bars] turns of one class whose pass rate is nearest to each bar."""
    heights = [0] * bars
    for candidate, decision in zip(candidates, decisions, strict=True):
        profile = candidate.profile
        if profile is not None and outcome(profile) is member and (decision is Decision.KEPT) == is_kept:
            heights[round(profile.pass_rate * (bars - 1))] += 1
    return heights


def _label(axes: Axes, candidates: Sequence[Candidate], decisions: Sequence[Decision]) -> None:
    outcomes = [outcome(candidate.profile) for candidate in candidates if candidate.profile is not None]
    num_kept = sum(decision is Decision.KEPT for decision in decisions)
    classes = [
        Patch(color=colour, label=f"{member.value}: {outcomes.count(member)} turns")
        for member, colour in _COLOURS.items()
    ]
    kept = Patch(facecolor="#666666", edgecolor="white", hatch="//", label=f"kept: {num_kept} turns")
    axes.legend(handles=[*classes, kept], loc="upper center")
    axes.set_xlabel("pass rate of the reference policy at the turn")
    axes.set_ylabel("turns")
    axes.set_xlim(-0.1, 1.1)
    axes.set_title(f"{len(outcomes)} profiled turns")
    axes.spines[["top", "right"]].set_visible(False)
