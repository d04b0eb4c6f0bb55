"""Rollouts of all arms -> a table, a plot over training steps and summary.json."""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from examples.grpo_roc.measures import (
    ACCURACY,
    ERRORS,
    MEASURES,
    TOKENS,
    Estimate,
    Rollout,
    Seeds,
    estimate,
    first_step,
    gain,
    last_steps,
    measure,
    reduction,
)

LAST_STEPS = 10
"""Number of last training steps whose rollouts are the evaluation: the problems are new, and no rollout is left out."""
BIN_STEPS = 5
"""Number of steps whose mean is one point of the plot."""
_PACKAGES = ("verl-pivot", "verl", "sglang", "torch", "transformers", "ray")
_UNITS = {TOKENS: (1.0, ".0f", "")}
_PERCENT = (100.0, ".1f", " %")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All measurements of one run of the example."""

    base: dict[str, Estimate]
    """{measure: estimate for the base policy}"""
    arms: dict[str, dict[str, Estimate]]
    """{arm: {measure: estimate for its last steps}}"""
    fewer_errors: dict[str, Estimate]
    """{arm: reduction of tool errors in successes, as a share of the baseline's}"""
    more_accuracy: dict[str, Estimate]
    """{arm: its accuracy minus the baseline's}"""
    rollout_seconds: dict[str, float]
    """{arm: median seconds in which a step waits for rollouts, over all steps and seeds}"""
    num_steps: int
    num_seeds: int

    @classmethod
    def of(cls, arms: Mapping[str, Seeds], step_seconds: Mapping[str, Sequence[float]]) -> "Summary":
        """Compute all estimates.

        Args:
            arms: {arm: its rollouts}; the first one is the baseline.
            step_seconds: {arm: [num_steps] seconds in which each step of all seeds waited for rollouts}.
        """
        baseline, *_ = arms
        late = {arm: last_steps(seeds, LAST_STEPS) for arm, seeds in arms.items()}
        others = {arm: seeds for arm, seeds in late.items() if arm != baseline}
        return cls(
            base={name: estimate(name, first_step(arms)) for name in MEASURES},
            arms={arm: {name: estimate(name, seeds) for name in MEASURES} for arm, seeds in late.items()},
            fewer_errors={arm: reduction(ERRORS, late[baseline], seeds) for arm, seeds in others.items()},
            more_accuracy={arm: gain(ACCURACY, late[baseline], seeds) for arm, seeds in others.items()},
            rollout_seconds={arm: median(each) for arm, each in step_seconds.items()},
            num_steps=max(rollouts[-1].step for rollouts in arms[baseline]),
            num_seeds=len(arms[baseline]),
        )


def write(summary: Summary, arms: Mapping[str, Seeds], seconds: Mapping[str, float], folder: Path) -> None:
    """Write summary.json and the plot."""
    content = {
        "num_seeds": summary.num_seeds,
        "num_steps": summary.num_steps,
        "last_steps": LAST_STEPS,
        "base": {name: each.as_dict() for name, each in summary.base.items()},
        "arms": {
            arm: {name: each.as_dict() for name, each in estimates.items()} for arm, estimates in summary.arms.items()
        },
        "fewer_errors": {arm: each.as_dict() for arm, each in summary.fewer_errors.items()},
        "more_accuracy": {arm: each.as_dict() for arm, each in summary.more_accuracy.items()},
        "rollout_seconds": summary.rollout_seconds,
        "seconds": {phase: round(spent, 1) for phase, spent in seconds.items()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }
    (folder / "summary.json").write_text(json.dumps(content, indent=2) + "\n")
    draw(arms, folder / "grpo_roc.png")


def show(summary: Summary, console: Console) -> None:
    """Print each arm's values and its differences from the baseline, with 95 % intervals and the value of each seed."""
    title = f"Steps {summary.num_steps - LAST_STEPS + 1} to {summary.num_steps}, {summary.num_seeds} seeds, sampled"
    table = Table(title=title, title_justify="left")
    for column in ("", *MEASURES, "rollouts, s", "fewer errors", "more accuracy"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("before training", *(_cell(name, each) for name, each in summary.base.items()))
    for arm, estimates in summary.arms.items():
        cells = [_cell(name, each) for name, each in estimates.items()]
        differences = [each[arm] for each in (summary.fewer_errors, summary.more_accuracy) if arm in each]
        table.add_row(
            arm,
            *cells,
            f"{summary.rollout_seconds[arm]:.1f}",
            *(_cell(ERRORS, each) for each in differences),
            end_section=True,
        )
    console.print(table)


def _cell(name: str, value: Estimate) -> str:
    factor, form, unit = _UNITS.get(name, _PERCENT)
    mean, low, high, *seeds = (
        f"{factor * each:{form}}" for each in (value.value, value.low, value.high, *value.by_seed)
    )
    return f"{mean}{unit} [{low}, {high}]\n({', '.join(seeds)})"


def draw(arms: Mapping[str, Seeds], path: Path) -> None:
    """Plot each measure over training steps: the mean over seeds, and the range from lowest to highest seed."""
    figure, panels = plt.subplots(1, len(MEASURES), figsize=(4.2 * len(MEASURES), 4.2), layout="constrained")
    for panel, name in zip(panels, MEASURES, strict=True):
        for arm, seeds in arms.items():
            _draw_arm(panel, name, arm, seeds)
        panel.set(xlabel="training step", title=name)
        panel.set_ylim(bottom=0)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(arms))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_arm(panel: Axes, name: str, arm: str, seeds: Seeds) -> None:
    values = np.array([[measure(name, few) for few in binned(rollouts)] for rollouts in seeds])
    steps = BIN_STEPS * np.arange(values.shape[1]) + (BIN_STEPS + 1) / 2
    (line,) = panel.plot(steps, values.mean(axis=0), label=arm)
    panel.fill_between(steps, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.15, linewidth=0)


def binned(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """[num_bins] rollouts of BIN_STEPS steps each."""
    bins: list[list[Rollout]] = [[] for _ in range(0, rollouts[-1].step, BIN_STEPS)]
    for rollout in rollouts:
        bins[(rollout.step - 1) // BIN_STEPS].append(rollout)
    return bins
