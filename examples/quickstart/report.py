"""Evaluations of the base and the trained policy -> a table, a plot and summary.json."""

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from examples.quickstart.evaluate import Accuracy, Evaluation
from examples.quickstart.tasks import UNSEEN_FAMILIES
from verl_pivot.statistics import paired_difference

_PACKAGES = ("verl-pivot", "verl", "sglang", "torch", "transformers", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All measurements of one run of the example."""

    seed: int
    base: Evaluation
    trained: Evaluation
    seconds: dict[str, float]
    """{phase: seconds that it took}, in order."""
    steps: Sequence[dict[str, float]]
    """[num_steps] verl's metrics of each training step."""


def write(
    summary: Summary, folder: Path, *, name: str = "quickstart", title: str = "PivotRL on single actions"
) -> None:
    """Write summary.json and the plot.

    Args:
        summary: All measurements.
        folder: Folder to write into.
        name: Name of the plot's file, without `.png`.
        title: Title of the plot's left half.
    """
    content = {
        "seed": summary.seed,
        "base": summary.base.as_dict(),
        "trained": summary.trained.as_dict(),
        "seconds": {phase: round(seconds, 1) for phase, seconds in summary.seconds.items()},
        "num_steps": len(summary.steps),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
    }
    (folder / "summary.json").write_text(json.dumps(content, indent=2) + "\n")
    draw(summary, folder / f"{name}.png", title)


def show(summary: Summary, console: Console) -> None:
    """Print a table of base and trained policy with 95 % intervals; the gain has an interval of paired outcomes."""
    table = Table(title=f"Held-out tasks, greedy (seed {summary.seed})", title_justify="left")
    for column in ("", "base", "trained", "points"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("whole tasks", *_row(summary.base.tasks, summary.trained.tasks), style="bold")
    table.add_row("single turns", *_row(summary.base.turns, summary.trained.turns))
    table.add_section()
    for family, base in summary.base.tasks_by_family.items():
        note = " (not in training)" if family in UNSEEN_FAMILIES else ""
        table.add_row(f"{family}{note}", *_row(base, summary.trained.tasks_by_family[family]))
    console.print(table)
    console.print(", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in summary.seconds.items()), highlight=False)


def _row(base: Accuracy, trained: Accuracy) -> tuple[str, str, str]:
    gain, (low, high) = paired_difference(base.outcomes, trained.outcomes)
    return _percent(base), _percent(trained), f"{100 * gain:+.0f} [{100 * low:+.0f}, {100 * high:+.0f}]"


def _percent(accuracy: Accuracy) -> str:
    low, high = accuracy.interval
    return f"{accuracy.value:.0%} [{100 * low:.0f}, {100 * high:.0f}]"


def draw(summary: Summary, path: Path, title: str) -> None:
    """Plot the training reward by step, and the success by family before and after training."""
    figure, (curve, bars) = plt.subplots(1, 2, figsize=(11, 4.5), width_ratios=(1, 1.4), layout="constrained")
    curve.plot(
        [step["step"] for step in summary.steps],
        [step["critic/score/mean"] for step in summary.steps],
        color="tab:blue",
    )
    curve.set(xlabel="training step", ylabel="mean reward of the samples", ylim=(0, 1), title=title)
    families = [f"{family}, unseen" if family in UNSEEN_FAMILIES else family for family in summary.base.tasks_by_family]
    names = ["whole tasks", *families]
    for offset, label, evaluation in ((-0.2, "base", summary.base), (0.2, "trained", summary.trained)):
        accuracies = [evaluation.tasks, *evaluation.tasks_by_family.values()]
        below = [each.value - each.interval[0] for each in accuracies]
        above = [each.interval[1] - each.value for each in accuracies]
        places = [place + offset for place in range(len(names))]
        bars.barh(places, [each.value for each in accuracies], 0.4, xerr=(below, above), capsize=2, label=label)
    bars.set_yticks(range(len(names)), names)
    bars.invert_yaxis()
    bars.set(xlim=(0, 1), xlabel="success", title="Held-out tasks, greedy, 95 % intervals")
    figure.legend(*bars.get_legend_handles_labels(), loc="outside lower right", ncols=2)
    figure.savefig(path, dpi=120)
    plt.close(figure)
