"""`verl-pivot tools report`: runs of one training with several seeds -> how tool use, length and accuracy develop."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_pivot.errors import ConfigError

if TYPE_CHECKING:
    from verl_pivot.runs.tool_use import StepToolUse

tools_app = typer.Typer(help="Look at the tool calls of a training.", no_args_is_help=True)


@tools_app.callback()
def tools() -> None:
    """Look at the tool calls of a training."""


@tools_app.command("report")
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folder of trainer.rollout_data_dir, or one that has it as rollouts; one for each seed.",
        ),
    ],
    right_from: Annotated[float, typer.Option(help="Least reward of a trajectory that counts as right.")] = 0.5,
    block: Annotated[
        int, typer.Option(min=1, help="Steps of a block, over which rows and differences are means.")
    ] = 10,
    plot: Annotated[Path | None, typer.Option(help="PNG file to draw, with a line for each run.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything, with every step, as one JSON object instead.")
    ] = False,
) -> None:
    """Show how calls, length and accuracy develop over the steps, and whether they move together.

    The figures are those of all trajectories of a step that were not masked, read from the dumps that
    trainer.rollout_data_dir=DIR makes a training write.

    \b
    Examples:
    verl-pivot tools report outputs/run
    verl-pivot tools report seed-0 seed-1 seed-2 --plot trends.png
    verl-pivot tools report rollouts --right-from 1 --json
    """
    if plot is not None and plot.suffix != ".png":
        raise ConfigError(
            f"--plot {plot}: a PNG is drawn, and its name must end in .png; give {plot.with_suffix('.png')}"
        )
    if not math.isfinite(right_from):
        raise ConfigError(f"--right-from {right_from}: give a number, such as 1")
    folders = {str(run): run for run in runs}
    if len({run.resolve() for run in runs}) < len(runs):
        raise ConfigError("a RUN is given twice: each must be the run of another seed")
    from verl_pivot.commands.tools_display import ToolReport, print_report, report_as_dict

    report = ToolReport(runs={name: _read(folder, right_from) for name, folder in folders.items()}, block_size=block)
    if plot is not None:
        from verl_pivot.runs.tool_use_plot import draw_tool_use

        draw_tool_use(report.runs, plot)
    if as_json:
        import json

        typer.echo(json.dumps(report_as_dict(report), indent=2))
    else:
        print_report(report)
    if plot is not None:
        typer.echo(f"Wrote {plot}.", err=as_json)


def _read(run: Path, right_from: float) -> "tuple[StepToolUse, ...]":
    from verl_pivot.commands.progress import progress_bar
    from verl_pivot.runs.tool_use import dump_files, read_tool_use

    with progress_bar("steps", len(dump_files(run))) as on_step:
        return read_tool_use(run, right_from=right_from, on_step=on_step)
