"""StepToolUse of several runs -> a picture: calls, failing calls, length and accuracy over the steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from verl_pivot.extras import extra
from verl_pivot.runs.tool_use import StepToolUse

with extra("data"):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

_PANELS = {
    "calling_share": "share of trajectories that call a tool",
    "calls": "calls per trajectory",
    "failing_share": "share of calls that fail",
    "tokens": "sampled tokens per trajectory",
    "accuracy": "accuracy",
}
"""{field of StepToolUse: label of its panel}"""


def draw_tool_use(runs: Mapping[str, Sequence[StepToolUse]], path: Path) -> None:
    """Draw a PNG with one panel for each quantity, and one line in it for each run.

    Args:
        runs: {name of a run: [num_steps] tool use in its steps}
        path: The file to write.
    """
    figure = Figure(figsize=(8, 2.4 * len(_PANELS)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for axes, (field, label) in zip(panels, _PANELS.items(), strict=True):
        for name, steps in runs.items():
            heights = [getattr(step, field) for step in steps]
            axes.plot([step.step for step in steps], [float("nan") if y is None else y for y in heights], label=name)
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend()
    panels[-1].set_xlabel("training step")
    figure.savefig(path, format="png", dpi=120)
